// SPDX-License-Identifier: Apache-2.0
// A program with a tensor-parallel MLP of its own - plain loops, one thread per rank, nothing of shardcheck's program -
// that hands in its tensors to be judged. `own_mlp --forget-sum` leaves the all_reduce out, to see what is said then.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "harness/verifier.hpp"
#include "model/model.hpp"
#include "reference/transformer.hpp"

namespace {

constexpr int kRanks = 3;
constexpr const char* kMlp = "layers.1.mlp";
constexpr const char* kInput = "layers.1.post_attention_layernorm";

struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> at;
};

/// y = x W^T, the sum over the columns [begin, end) of W alone.            x [M, end - begin]   W [O, I]   y [M, O]
Matrix product(const Matrix& x, const Matrix& weight, std::int64_t begin) {
  Matrix y{x.rows, weight.rows, std::vector<float>(static_cast<std::size_t>(x.rows * weight.rows))};
  for (std::int64_t row = 0; row < x.rows; ++row) {
    for (std::int64_t out = 0; out < weight.rows; ++out) {
      float sum = 0.0f;
      for (std::int64_t in = 0; in < x.cols; ++in) {
        sum += x.at[static_cast<std::size_t>(row * x.cols + in)] *
               weight.at[static_cast<std::size_t>(out * weight.cols + begin + in)];
      }
      y.at[static_cast<std::size_t>(row * weight.rows + out)] = sum;
    }
  }
  return y;
}

/// Rows [begin, end) of a weight in f32.
Matrix rows_of(const shardcheck::Model& model, const std::string& tensor, std::int64_t begin,
               std::int64_t end) {
  Matrix weight{end - begin, model.extents(tensor).cols, {}};
  weight.at.resize(static_cast<std::size_t>(weight.rows * weight.cols));
  model.read_rows(tensor, begin, end, std::span<float>(weight.at));
  return weight;
}

/// What the MLP is given: the truth's value there, in f32.
Matrix input_of(const shardcheck::Model& model, const std::vector<std::int64_t>& ids) {
  Matrix input;
  shardcheck::reference::Transformer<double> truth(model);
  truth.forward(ids, [&](std::string_view tap, const auto& value) {
    if (tap != kInput) return;
    input = {value.rows(), value.cols(), {}};
    for (const double x : value.values()) input.at.push_back(static_cast<float>(x));
  });
  return input;
}

int run(bool forget_sum) {
  const shardcheck::Model model = shardcheck::load_model("tiny-llama");
  const std::vector<std::int64_t> ids = {3, 141, 59, 26, 5, 35, 89};
  const std::string mlp = kMlp;

  shardcheck::VerifierOptions options;
  options.mesh = shardcheck::Mesh{{{"tp", kRanks}}};
  options.sequences = {ids};
  shardcheck::Verifier verifier(model, options);
  verifier.place(mlp + ".{gate_proj,up_proj,act}", {{"tp", "S(features)"}});
  verifier.place(mlp + ".down_proj.partial", {{"tp", "P(sum)"}});

  const Matrix input = input_of(model, ids);
  const std::int64_t width = model.config().intermediate_size;
  std::vector<Matrix> partial(kRanks);
  std::barrier all_there(kRanks);
  const auto rank_main = [&](int rank) {
    // Ranks before (width mod P) hold one more, as the balanced cut has it.
    const std::int64_t share = width / kRanks, extra = width % kRanks;
    const std::int64_t begin = rank * share + std::min<std::int64_t>(rank, extra);
    const std::int64_t end = begin + share + (rank < extra ? 1 : 0);
    const Matrix gate = product(input, rows_of(model, mlp + ".gate_proj.weight", begin, end), 0);
    const Matrix up = product(input, rows_of(model, mlp + ".up_proj.weight", begin, end), 0);
    Matrix act = gate;
    for (std::size_t i = 0; i < act.at.size(); ++i)
      act.at[i] = gate.at[i] / (1.0f + std::exp(-gate.at[i])) * up.at[i];
    const Matrix down = rows_of(model, mlp + ".down_proj.weight", 0, model.config().hidden_size);
    partial[static_cast<std::size_t>(rank)] = product(act, down, begin);
    all_there.arrive_and_wait();
    Matrix sum = partial[static_cast<std::size_t>(rank)];
    if (!forget_sum) {
      sum = partial[0];
      for (int peer = 1; peer < kRanks; ++peer) {
        for (std::size_t i = 0; i < sum.at.size(); ++i)
          sum.at[i] += partial[static_cast<std::size_t>(peer)].at[i];
      }
    }
    verifier.tap(kInput, rank, input.at);
    verifier.tap(mlp + ".gate_proj", rank, gate.at);
    verifier.tap(mlp + ".up_proj", rank, up.at);
    verifier.tap(mlp + ".act", rank, act.at);
    verifier.tap(mlp + ".down_proj.partial", rank, partial[static_cast<std::size_t>(rank)].at);
    verifier.tap(mlp + ".down_proj", rank, sum.at);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(rank_main, rank);
  for (std::thread& rank : ranks) rank.join();

  const shardcheck::CandidateReport report = verifier.report();
  std::printf("%s", shardcheck::candidate_table(report).c_str());
  return report.passed() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 && std::string_view(argv[1]) == "--forget-sum");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
