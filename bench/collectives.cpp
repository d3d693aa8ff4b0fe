// SPDX-License-Identifier: Apache-2.0
// all_reduce among thread ranks against the memory-bandwidth bound: the time in which as many threads copy as many
// bytes. On n bytes each of P ranks reads n/P of every input and writes n/P of the sum to every output, which reads its
// own n/P again P - 1 times: n (2P - 1) / P read and n written, as much as copying n (3P - 1) / 2P. Poisoning, waking up
// and agreeing are the collective's own cost. The two are measured in turn; `of_bound` = bound / time, and from 1 MiB on
// at least 0.5 is asked for. `of_bound_cpu` is the same of the threads' CPU time, which other programs on the machine
// disturb less: there of_bound is low because woken ranks don't get a core at once.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "bench/clock.hpp"
#include "kernels/device.hpp"
#include "sharded/comm/communicator.hpp"

namespace {

using namespace shardcheck;

/// What one rank's thread saw of a number of calls.
struct Times {
  double start = 0.0, end = 0.0, cpu = 0.0;  // seconds; cpu: that this thread computed
};
Times times_of(int calls, const std::function<void()>& call) {
  const double start = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < calls; ++i) call();
  return {start, seconds(CLOCK_MONOTONIC), seconds(CLOCK_THREAD_CPUTIME_ID) - cpu};
}

/// From the first rank's start to the last rank's end, and the CPU seconds of all.
struct Span {
  double wall = 0.0, cpu = 0.0;
  void add(const std::vector<Times>& ranks, int calls) {
    double start = ranks[0].start, end = ranks[0].end;
    for (const Times& rank : ranks) {
      start = std::min(start, rank.start);
      end = std::max(end, rank.end);
      cpu += rank.cpu / calls;
    }
    wall += (end - start) / calls;
  }
};

void all_reduce(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  const auto device = builtin_devices().make("cpu");
  const auto world = builtin_worlds().make("threads", Mesh{{{"tp", ranks}}});
  std::vector<Ledger> ledgers(static_cast<std::size_t>(ranks));
  const int calls = static_cast<int>(
      std::clamp<std::int64_t>((std::int64_t{32} << 20) / bytes / ranks, 1, 500));
  std::vector<Times> collective(ledgers.size()), copies(ledgers.size());  // by rank
  Span collective_sum, copies_sum;                                        // over the iterations

  // Tensors live as long as the benchmark: memory fresh from the system is slow at its first touch.
  std::vector<Tensor> inputs, outputs;
  const auto main_stream = device->make_stream();
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(device->allocate(*main_stream, DType::f32, 1, bytes / 4));
    outputs.push_back(device->allocate(*main_stream, DType::f32, 1, bytes / 4));
    HostTensor values(DType::f32, {1, bytes / 4});
    float next = static_cast<float>(rank);
    for (float& value : values.as_mutable<float>()) value = next += 0.25f;
    device->upload(*main_stream, values, inputs.back());
    device->poison(*main_stream, outputs.back());
  }
  for (auto _ : state) {
    world->run([&](int rank) {
      const auto self = static_cast<std::size_t>(rank);
      const auto stream = device->make_stream();
      const auto tp = world->group(rank, {0}, *device, ledgers[self]);
      const Tensor tiny = device->allocate(*stream, DType::f32, 1, 0);
      const auto meet = [&] {
        tp->all_reduce(*stream, tiny, {}, tiny, {"meet", Phase::prefill, 0});
      };
      const std::int64_t extra = bytes / 4 * (ranks - 1) / (2 * ranks);  // (3P - 1) / 2P = 1 + (P - 1) / 2P
      meet();
      copies[self] = times_of(calls, [&] {
        device->copy(*stream, inputs[self], outputs[self]);
        device->copy(*stream, inputs[self].col_range(0, extra), outputs[self].col_range(0, extra));
      });
      meet();
      collective[self] = times_of(calls, [&] {
        tp->all_reduce(*stream, inputs[self], {}, outputs[self], {"mlp.down_proj", Phase::prefill, 0});
      });
      ledgers[self].clear();
    });
    const double before = collective_sum.wall;
    copies_sum.add(copies, calls);
    collective_sum.add(collective, calls);
    state.SetIterationTime(collective_sum.wall - before);
  }
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["bound_us"] = copies_sum.wall / iterations * 1e6;
  state.counters["of_bound"] = copies_sum.wall / collective_sum.wall;
  state.counters["of_bound_cpu"] = copies_sum.cpu / collective_sum.cpu;
  state.counters["algbw"] = benchmark::Counter(
      static_cast<double>(bytes) * iterations / collective_sum.wall, benchmark::Counter::kDefaults,
      benchmark::Counter::kIs1024);
}

BENCHMARK(all_reduce)
    ->ArgNames({"ranks", "bytes"})
    ->ArgsProduct({{2, 4, 8}, {1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(5)  // each of many calls
    ->Repetitions(5)
    ->ReportAggregatesOnly(true);

}  // namespace

BENCHMARK_MAIN();
