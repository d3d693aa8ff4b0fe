// SPDX-License-Identifier: Apache-2.0
// The cpu device's linear against plain Eigen on the same numbers, one thread: the shapes of SmolLM2-135M's linears
// at M = 1 (decode), 16, 32 and 512 tokens. Pairs Device/x and Eigen/x are meant to be divided.
#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_device.hpp"
#include "model/host_tensor.hpp"

namespace {

using namespace shardcheck;

/// Values in [-0.5, 0.5), different everywhere, from a Weyl sequence.
std::vector<double> varied(std::int64_t elements) {
  std::vector<double> values(static_cast<std::size_t>(elements));
  std::uint32_t state = 1;
  for (double& value : values) value = static_cast<double>(state += 0x9e3779b9u) * 0x1p-32 - 0.5;
  return values;
}

void count_work(benchmark::State& state, std::int64_t m, std::int64_t k, std::int64_t n, DType dtype) {
  const auto per_second = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["flops"] = benchmark::Counter(static_cast<double>(2 * m * k * n), per_second);
  const double weight_bytes = static_cast<double>(k * n) * static_cast<double>(element_size(dtype));
  state.counters["weight_B"] = benchmark::Counter(weight_bytes, per_second);
}

void device_linear(benchmark::State& state, DType dtype) {
  const std::int64_t m = state.range(0), k = state.range(1), n = state.range(2);
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  const Tensor x = device->adopt(*stream, round_to(dtype, {m, k}, varied(m * k)));
  const Tensor weight = device->adopt(*stream, round_to(dtype, {n, k}, varied(n * k)));
  const Tensor out = device->allocate(*stream, dtype, m, n);
  for (auto _ : state) {
    device->linear(*stream, x, weight, nullptr, out);
    benchmark::ClobberMemory();
  }
  count_work(state, m, k, n, dtype);
}

template <typename T>
void eigen_linear(benchmark::State& state) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const std::int64_t m = state.range(0), k = state.range(1), n = state.range(2);
  const std::vector<double> x_values = varied(m * k), w_values = varied(n * k);
  const Matrix x = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
                       x_values.data(), m, k)
                       .template cast<T>();
  const Matrix w = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
                       w_values.data(), n, k)
                       .template cast<T>();
  Matrix out(m, n);
  for (auto _ : state) {
    out.noalias() = x * w.transpose();
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  count_work(state, m, k, n, std::is_same_v<T, double> ? DType::f64 : DType::f32);
}

/// {tokens, in, out}: q/o, gate/up, down, and the tied lm_head (only few tokens: it is the largest).
void shapes(benchmark::internal::Benchmark* bench) {
  for (const std::int64_t m : {1, 16, 32, 512}) {
    bench->Args({m, 576, 576})->Args({m, 576, 1536})->Args({m, 1536, 576});
    if (m <= 32) bench->Args({m, 576, 49152});
  }
  bench->ArgNames({"M", "K", "N"})->Unit(benchmark::kMicrosecond)->UseRealTime();
}

BENCHMARK_CAPTURE(device_linear, f32, DType::f32)->Apply(shapes);
BENCHMARK(eigen_linear<float>)->Name("eigen_linear/f32")->Apply(shapes);
BENCHMARK_CAPTURE(device_linear, f64, DType::f64)->Apply(shapes);
BENCHMARK(eigen_linear<double>)->Name("eigen_linear/f64")->Apply(shapes);
BENCHMARK_CAPTURE(device_linear, bf16, DType::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(device_linear, f16, DType::f16)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
