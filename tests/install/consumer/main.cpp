// SPDX-License-Identifier: Apache-2.0
// A stranger's program: the truth for three tokens, and which rows of a weight each of three ranks owns.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "model/model.hpp"
#include "reference/transformer.hpp"
#include "sharded/plan.hpp"

int main() {
  try {
    const shardcheck::Model model = shardcheck::load_model("tiny-llama");

    shardcheck::reference::Transformer<double> truth(model);
    const std::vector<std::int64_t> ids = {1, 17, 5};
    const auto logits = truth.forward(ids);  // [3, vocab]
    bool finite = true;
    for (std::int64_t row = 0; row < logits.rows(); ++row) {
      for (std::int64_t col = 0; col < logits.cols(); ++col) {
        finite = finite && std::isfinite(logits(row, col));
      }
    }
    std::printf("logits: %lld x %lld\n", static_cast<long long>(logits.rows()),
                static_cast<long long>(logits.cols()));

    const shardcheck::Mesh mesh{{{"tp", 3}}};
    const auto plan = shardcheck::resolve(shardcheck::load_plan("megatron"), model, mesh);
    const auto& module = model.module("layers.0.mlp.gate_proj");
    std::int64_t rows = 0;
    for (int rank = 0; rank < 3; ++rank) {
      rows += shardcheck::total(plan.rows_of(module, rank));
      std::printf("rank %d: %s\n", rank, shardcheck::to_string(plan.rows_of(module, rank)).c_str());
    }
    const bool covered = rows == model.extents("layers.0.mlp.gate_proj.weight").rows;
    return finite && covered && logits.cols() == model.config().vocab_size ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
