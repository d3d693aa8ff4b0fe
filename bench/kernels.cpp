// SPDX-License-Identifier: Apache-2.0
// Every primitive of a device: bytes/s or flop/s, and as a share of what the same device reaches at its best in the same
// run: bytes/s of a large dense copy, flop/s of a large linear in the same storage dtype. `of_ceiling` is that share.
// The device is named by --device KIND or SHARDCHECK_BENCH_DEVICE; cpu if neither is there. Each time is that of many
// calls enqueued in a row and one wait, so that on a GPU starting a kernel overlaps with the kernel before.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/device.hpp"
#include "model/error.hpp"
#include "model/host_tensor.hpp"

namespace {

using namespace shardcheck;

/// How large things are: on a GPU a tensor must not fit its caches, on emu a kernel takes a thousand times longer.
struct Sizes {
  std::int64_t tokens, hidden;  // of a step of prefill
  std::int64_t vocabulary;
  std::int64_t heads, kv_heads, head_dim, queries, keys;
  std::int64_t square;  // of the linear whose flop/s are the ceiling
  double seconds;       // of one measurement, at least
};
Sizes sizes_for(std::string_view kind) {
  if (kind == "emu") return {4, 64, 96, 4, 2, 16, 4, 24, 24, 0.0};
  if (kind == "cpu") return {512, 1024, 8192, 8, 2, 64, 128, 512, 512, 0.02};
  return {8192, 8192, 131072, 32, 8, 128, 4096, 4096, 8192, 0.02};
}

/// A device, a stream, and tensors with numbers in them.
class Bench {
 public:
  explicit Bench(const std::string& kind)
      : sizes(sizes_for(kind)),
        device_(builtin_devices().make(kind)),
        stream_(device_->make_stream()) {}

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

  Tensor empty(DType dtype, std::int64_t rows, std::int64_t cols) {
    return device_->allocate(*stream_, dtype, rows, cols);
  }
  /// Different numbers in [-0.5, 0.5): one short row block from the host, repeated by copies on the device.
  Tensor filled(DType dtype, std::int64_t rows, std::int64_t cols) {
    constexpr std::int64_t kMost = 1 << 20;
    const std::int64_t block = std::clamp<std::int64_t>(kMost / std::max<std::int64_t>(cols, 1), 1,
                                                        rows);
    std::vector<double> values(static_cast<std::size_t>(block * cols));
    std::uint32_t state = 1;
    for (double& value : values) value = static_cast<double>(state += 0x9e3779b9u) * 0x1p-32 - 0.5;
    const Tensor tensor = empty(dtype, rows, cols);
    device_->upload(*stream_, round_to(dtype, {block, cols}, values), tensor.row_range(0, block));
    for (std::int64_t row = block; row < rows; row += block) {
      const std::int64_t count = std::min(block, rows - row);
      device_->copy(*stream_, tensor.row_range(0, count), tensor.row_range(row, row + count));
    }
    return tensor;
  }
  Tensor indices(std::int64_t count, std::int64_t below) {
    HostTensor host(DType::i64, {1, count});
    std::int64_t next = 0;
    for (std::int64_t& index : host.as_mutable<std::int64_t>()) index = (next += 7919) % below;
    const Tensor tensor = empty(DType::i64, 1, count);
    device_->upload(*stream_, host, tensor);
    return tensor;
  }

  /// Seconds of one call among `calls` in a row.
  double seconds_of(const std::function<void()>& call, int calls) {
    stream_->synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    stream_->synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
  }
  /// Calls that take at least sizes.seconds together.
  int calls_for(const std::function<void()>& call) {
    call();
    const double once = seconds_of(call, 1);
    return static_cast<int>(std::clamp(sizes.seconds / std::max(once, 1e-7), 1.0, 2000.0));
  }
  /// The best of a few measurements.
  double best_seconds(const std::function<void()>& call) {
    const int calls = calls_for(call);
    double best = seconds_of(call, calls);
    for (int i = 0; i < 4; ++i) best = std::min(best, seconds_of(call, calls));
    return best;
  }

  const Sizes sizes;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

/// What the device reaches at its best.
struct Ceilings {
  double bytes_per_second = 0.0;
  std::map<DType, double> flops_per_second;
};

double bytes_of(const Tensor& tensor) {
  return static_cast<double>(tensor.rows * tensor.cols) *
         static_cast<double>(element_size(tensor.dtype));
}

Ceilings measure_ceilings(Bench& bench) {
  Ceilings ceilings;
  const Sizes& s = bench.sizes;
  {
    const Tensor in = bench.filled(DType::f32, s.tokens, s.hidden),
                 out = bench.empty(DType::f32, s.tokens, s.hidden);
    const double seconds = bench.best_seconds([&] { bench.device().copy(bench.stream(), in, out); });
    ceilings.bytes_per_second = 2.0 * bytes_of(in) / seconds;
  }
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = bench.filled(dtype, s.square, s.square),
                 weight = bench.filled(dtype, s.square, s.square);
    const Tensor out = bench.empty(dtype, s.square, s.square);
    const double seconds = bench.best_seconds(
        [&] { bench.device().linear(bench.stream(), x, weight, nullptr, out); });
    ceilings.flops_per_second[dtype] = 2.0 * std::pow(static_cast<double>(s.square), 3) / seconds;
  }
  return ceilings;
}

/// A primitive ready to be called, and what one call moves or computes; the one of the two that limits it is not 0.
struct Work {
  std::function<void()> call;
  double bytes = 0.0, flops = 0.0;
};

struct Case {
  std::string name;
  DType dtype;
  std::function<Work(Bench&, DType)> prepare;
};

Work moving(std::function<void()> call, std::initializer_list<Tensor> tensors) {
  double bytes = 0.0;
  for (const Tensor& tensor : tensors) bytes += bytes_of(tensor);
  return {std::move(call), bytes, 0.0};
}

// ---- the cases ---------------------------------------------------------------------------------------------------------

Work linear(Bench& b, DType dtype, std::int64_t tokens) {
  const std::int64_t n = b.sizes.hidden;
  const Tensor x = b.filled(dtype, tokens, n), weight = b.filled(dtype, n, n),
               out = b.empty(dtype, tokens, n);
  const auto call = [&b, x, weight, out] { b.device().linear(b.stream(), x, weight, nullptr, out); };
  // A few tokens are limited by reading the weight, many by the products.
  if (tokens < 64) return moving(call, {x, weight, out});
  return {call, 0.0,
          2.0 * static_cast<double>(tokens) * static_cast<double>(n) * static_cast<double>(n)};
}

Work rms_norm(Bench& b, DType dtype) {
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden),
               out = b.empty(dtype, x.rows, x.cols);
  const Tensor weight = b.filled(dtype, 1, x.cols);
  return moving([&b, x, weight, out] { b.device().rms_norm(b.stream(), x, weight, 1e-5, out); },
                {x, out});
}

Work square_sum(Bench& b, DType dtype) {
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden),
               out = b.empty(accumulate_dtype(dtype), x.rows, 1);
  return moving([&b, x, out] { b.device().square_sum(b.stream(), x, out); }, {x, out});
}

Work rms_apply(Bench& b, DType dtype) {
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden),
               out = b.empty(dtype, x.rows, x.cols);
  const Tensor weight = b.filled(dtype, 1, x.cols), squares = b.empty(accumulate_dtype(dtype), x.rows, 1);
  b.device().square_sum(b.stream(), x, squares);
  return moving([&b, x, weight, squares,
                 out] { b.device().rms_apply(b.stream(), x, weight, squares, x.cols, 1e-5, out); },
                {x, out});
}

Work layer_norm(Bench& b, DType dtype) {
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden),
               out = b.empty(dtype, x.rows, x.cols);
  const Tensor weight = b.filled(dtype, 1, x.cols), bias = b.filled(dtype, 1, x.cols);
  return moving(
      [&b, x, weight, bias, out] { b.device().layer_norm(b.stream(), x, weight, bias, 1e-5, out); },
      {x, out});
}

Work add_rms_norm(Bench& b, DType dtype) {
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden),
               y = b.filled(dtype, x.rows, x.cols);
  const Tensor sum = b.empty(dtype, x.rows, x.cols), out = b.empty(dtype, x.rows, x.cols);
  const Tensor weight = b.filled(dtype, 1, x.cols);
  return moving([&b, x, y, weight, sum,
                 out] { b.device().add_rms_norm(b.stream(), x, y, weight, 1e-5, sum, out); },
                {x, y, sum, out});
}

Work rope(Bench& b, DType dtype) {
  const std::int64_t d = b.sizes.head_dim;
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden / d * d),
               out = b.empty(dtype, x.rows, x.cols);
  const Tensor cos = b.filled(DType::f32, x.rows, d / 2), sin = b.filled(DType::f32, x.rows, d / 2);
  return moving(
      [&b, x, cos, sin, d, out] {
        b.device().rope(b.stream(), x, cos, sin, d, RopeConvention::half_split, out);
      },
      {x, cos, sin, out});
}

Work elementwise(Bench& b, DType dtype,
                 const std::function<void(const Tensor&, const Tensor&, const Tensor&)>& call,
                 int inputs) {
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden),
               out = b.empty(dtype, x.rows, x.cols);
  const Tensor y = inputs == 2 ? b.filled(dtype, x.rows, x.cols) : x;
  return {[call, x, y, out] { call(x, y, out); }, (inputs + 1) * bytes_of(x), 0.0};
}

Work bias(Bench& b, DType dtype) {
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden),
               out = b.empty(dtype, x.rows, x.cols);
  const Tensor row = b.filled(dtype, 1, x.cols);
  return moving([&b, x, row, out] { b.device().bias(b.stream(), x, row, out); }, {x, out});
}

Work embedding(Bench& b, DType dtype) {
  const std::int64_t rows = b.sizes.vocabulary / 2;  // one of two ranks' half: other ids give zeros
  const Tensor table = b.filled(dtype, rows, b.sizes.hidden / 2),
               ids = b.indices(b.sizes.tokens, b.sizes.vocabulary);
  const Tensor out = b.empty(dtype, b.sizes.tokens, table.cols);
  const std::vector<std::pair<std::int64_t, std::int64_t>> owned = {{0, rows}};
  // Half of the ids are owned: half of the rows are read, all are written.
  return {[&b, ids, table, owned, out] { b.device().embedding(b.stream(), ids, table, owned, out); },
          1.5 * bytes_of(out) + bytes_of(ids), 0.0};
}

Work cast(Bench& b, DType dtype) {
  const Tensor in = b.filled(dtype, b.sizes.tokens, b.sizes.hidden),
               out = b.empty(DType::f32, in.rows, in.cols);
  return moving([&b, in, out] { b.device().cast(b.stream(), in, out); }, {in, out});
}

Work strided_copy(Bench& b, DType dtype) {
  const Tensor whole = b.filled(dtype, b.sizes.tokens, b.sizes.hidden);
  const Tensor in = whole.col_range(1, whole.cols / 2), out = b.empty(dtype, in.rows, in.cols);
  return moving([&b, in, out] { b.device().copy(b.stream(), in, out); }, {in, out});
}

Work hash(Bench& b, DType dtype) {
  const Tensor x = b.filled(dtype, b.sizes.tokens, b.sizes.hidden), slots = b.empty(DType::u64, 1, 4);
  return moving([&b, x, slots] { b.device().hash(b.stream(), x, slots, 1); }, {x});
}

Work poison(Bench& b, DType dtype) {
  const Tensor x = b.empty(dtype, b.sizes.tokens, b.sizes.hidden);
  return moving([&b, x] { b.device().poison(b.stream(), x); }, {x});
}

Work reduce_n(Bench& b, DType dtype, int ranks, ReduceOrder order) {
  std::vector<Tensor> terms;
  for (int rank = 0; rank < ranks; ++rank)
    terms.push_back(b.filled(dtype, b.sizes.tokens / 2, b.sizes.hidden));
  const Tensor out = b.empty(dtype, terms[0].rows, terms[0].cols);
  const ReduceSpec spec{ReduceOp::sum, order, HopRounding::wire};
  return {[&b, terms, spec, out] {
            b.device().reduce_n(b.stream(), terms, spec, 0, out.rows * out.cols, out);
          },
          (ranks + 1) * bytes_of(out), 0.0};
}

struct AttentionTensors {
  Tensor q, k, v;
  AttentionState state;
  std::vector<std::int32_t> heads;
  AttentionShape shape;
};
AttentionTensors attention_tensors(Bench& b, DType dtype, std::int64_t queries, std::int64_t keys) {
  const Sizes& s = b.sizes;
  AttentionTensors t;
  t.q = b.filled(dtype, queries, s.heads * s.head_dim);
  t.k = b.filled(dtype, keys, s.kv_heads * s.head_dim);
  t.v = b.filled(dtype, keys, s.kv_heads * s.head_dim);
  t.state = {b.empty(DType::f32, queries, s.heads), b.empty(DType::f32, queries, s.heads),
             b.empty(DType::f32, queries, s.heads * s.head_dim)};
  for (std::int64_t head = 0; head < s.heads; ++head) {
    t.heads.push_back(static_cast<std::int32_t>(head * s.kv_heads / s.heads));
  }
  t.shape = {.head_dim = s.head_dim,
             .scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim)),
             .q_first = keys - queries,
             .k_first = 0,
             .window = 0};
  return t;
}

Work attention_prefill(Bench& b, DType dtype) {
  const Sizes& s = b.sizes;
  const std::int64_t queries = std::min(s.queries, s.keys);
  const AttentionTensors t = attention_tensors(b, dtype, queries, s.keys);
  double seen = 0.0;  // pairs of query and key that causality leaves
  for (std::int64_t i = 0; i < queries; ++i) seen += static_cast<double>(t.shape.q_first + i + 1);
  return {
      [&b, t] { b.device().attention_partial(b.stream(), t.q, t.k, t.v, t.heads, t.shape, t.state); },
      0.0, 4.0 * seen * static_cast<double>(s.heads * s.head_dim)};
}

Work attention_decode(Bench& b, DType dtype) {
  const AttentionTensors t = attention_tensors(b, dtype, 1, 8 * b.sizes.keys);
  return moving(
      [&b, t] { b.device().attention_partial(b.stream(), t.q, t.k, t.v, t.heads, t.shape, t.state); },
      {t.k, t.v});
}

AttentionState state_of(Bench& b) {
  const Sizes& s = b.sizes;
  return {b.filled(DType::f32, s.queries, s.heads), b.filled(DType::f32, s.queries, s.heads),
          b.filled(DType::f32, s.queries, s.heads * s.head_dim)};
}

Work attention_merge(Bench& b, DType) {
  const AttentionState other = state_of(b), into = state_of(b);
  return {[&b, other, into] { b.device().attention_merge(b.stream(), other, into); },
          3.0 * bytes_of(into.acc), 0.0};
}

Work attention_finish(Bench& b, DType dtype) {
  const AttentionState state = state_of(b);
  const Tensor out = b.empty(dtype, state.acc.rows, state.acc.cols);
  const std::int64_t d = b.sizes.head_dim;
  return moving([&b, state, d, out] { b.device().attention_finish(b.stream(), state, d, out); },
                {state.acc, out});
}

Work argmax(Bench& b, DType dtype) {
  const std::int64_t rows = std::max<std::int64_t>(b.sizes.tokens / 8, 1);
  const Tensor x = b.filled(dtype, rows, b.sizes.vocabulary);
  const Tensor value = b.empty(DType::f32, rows, 1), index = b.empty(DType::i64, rows, 1);
  const std::vector<std::pair<std::int64_t, std::int64_t>> owned = {{0, x.cols}};
  return moving(
      [&b, x, owned, value, index] { b.device().argmax(b.stream(), x, owned, value, index); }, {x});
}

Work cross_entropy(Bench& b, DType dtype) {
  const std::int64_t rows = std::max<std::int64_t>(b.sizes.tokens / 8, 1);
  const Tensor x = b.filled(dtype, rows, b.sizes.vocabulary),
               targets = b.indices(rows, b.sizes.vocabulary);
  const CrossEntropyState state{b.empty(DType::f32, rows, 1), b.empty(DType::f32, rows, 1),
                                b.empty(DType::f32, rows, 1)};
  const std::vector<std::pair<std::int64_t, std::int64_t>> owned = {{0, x.cols}};
  return moving([&b, x, targets, owned,
                 state] { b.device().cross_entropy_partial(b.stream(), x, targets, owned, state); },
                {x});
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, std::function<Work(Bench&, DType)> prepare,
                       std::vector<DType> dtypes = {DType::f32, DType::bf16}) {
    for (const DType dtype : dtypes) all.push_back({name, dtype, prepare});
  };
  const std::vector<DType> every = {DType::f32, DType::bf16, DType::f16};
  for (const std::int64_t tokens : {1, 16, 512}) {
    add(
        fmt::format("linear_{}_tokens", tokens),
        [tokens](Bench& b, DType d) { return linear(b, d, tokens); }, every);
  }
  add("attention_prefill", attention_prefill, every);
  add("attention_decode", attention_decode, every);
  add("attention_merge", attention_merge, {DType::f32});
  add("attention_finish", attention_finish);
  add("rms_norm", rms_norm);
  add("square_sum", square_sum);
  add("rms_apply", rms_apply);
  add("layer_norm", layer_norm);
  add("add_rms_norm", add_rms_norm);
  add("rope", rope);
  add("gate", [](Bench& b, DType d) {
    return elementwise(
        b, d, [&b](auto& x, auto& y, auto& out) { b.device().gate(b.stream(), x, y, out); }, 2);
  });
  for (const auto& [word, kind] :
       {std::pair{"silu", UnaryKind::silu}, std::pair{"gelu", UnaryKind::gelu_tanh}}) {
    add(word, [kind = kind](Bench& b, DType d) {
      return elementwise(
          b, d,
          [&b, kind](auto& x, auto&, auto& out) { b.device().unary(b.stream(), kind, x, out); }, 1);
    });
  }
  add("add", [](Bench& b, DType d) {
    return elementwise(
        b, d, [&b](auto& x, auto& y, auto& out) { b.device().add(b.stream(), x, y, out); }, 2);
  });
  add("bias", bias);
  add("embedding", embedding);
  add("cast_to_f32", cast, {DType::bf16, DType::f16});
  add("copy", [](Bench& b, DType d) {
    return elementwise(
        b, d, [&b](auto& x, auto&, auto& out) { b.device().copy(b.stream(), x, out); }, 1);
  });
  add("copy_columns", strided_copy);
  add("hash", hash);
  add("poison", poison);
  for (const int ranks : {2, 4, 8}) {
    for (const ReduceOrder order : {ReduceOrder::ring, ReduceOrder::one_shot, ReduceOrder::fixed_tree}) {
      add(fmt::format("reduce_{}_of_{}", name(order), ranks),
          [ranks, order](Bench& b, DType d) { return reduce_n(b, d, ranks, order); });
    }
  }
  add("argmax", argmax);
  add("cross_entropy", cross_entropy);
  return all;
}

// ---- running them ------------------------------------------------------------------------------------------------------

void run_case(benchmark::State& state, Bench& bench, const Ceilings& ceilings, const Case& which) {
  const Work work = which.prepare(bench, which.dtype);
  const int calls = bench.calls_for(work.call);
  double best = HUGE_VAL;
  for (auto _ : state) {
    const double seconds = bench.seconds_of(work.call, calls);
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  const double rate = (work.bytes > 0.0 ? work.bytes : work.flops) / best;
  state.counters[work.bytes > 0.0 ? "B/s" : "flop/s"] = rate;
  state.counters["of_ceiling"] = rate / (work.bytes > 0.0 ? ceilings.bytes_per_second
                                                          : ceilings.flops_per_second.at(which.dtype));
}

/// Takes --device KIND or --device=KIND out of the arguments.
std::string take_device(int& argc, char** argv) {
  const char* const set = std::getenv("SHARDCHECK_BENCH_DEVICE");
  std::string kind = set == nullptr ? "cpu" : set;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--device=")) {
      kind = word.substr(9);
    } else if (word == "--device" && i + 1 < argc) {
      kind = argv[++i];
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return kind;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = take_device(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  try {
    Bench bench(kind);
    const Ceilings ceilings = measure_ceilings(bench);
    benchmark::AddCustomContext("device",
                                fmt::format("{}: {}", kind, builtin_devices().describe(kind)));
    benchmark::AddCustomContext("ceiling_copy_B/s", fmt::format("{:.6e}", ceilings.bytes_per_second));
    for (const auto& [dtype, flops] : ceilings.flops_per_second) {
      benchmark::AddCustomContext(fmt::format("ceiling_linear_{}_flop/s", name(dtype)),
                                  fmt::format("{:.6e}", flops));
    }
    for (const Case& which : cases()) {
      benchmark::RegisterBenchmark(fmt::format("{}/{}", which.name, name(which.dtype)).c_str(),
                                   [&bench, &ceilings, which](benchmark::State& state) {
                                     run_case(state, bench, ceilings, which);
                                   })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(kind == "emu" ? 1 : 4);
    }
    benchmark::RunSpecifiedBenchmarks();
  } catch (const InputError& error) {
    fmt::print(stderr, "bench_kernels: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_kernels: {}\n", error.what());
    return 3;
  }
  benchmark::Shutdown();
  return 0;
}
