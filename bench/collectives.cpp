// SPDX-License-Identifier: Apache-2.0
// all_reduce among thread ranks against the memory-bandwidth bound: the time in which as many threads copy as many
// bytes. On n bytes each of P ranks reads n/P of every input and writes n/P of the sum to every output, which reads its
// own n/P again P - 1 times: n (2P - 1) / P read and n written, as much as copying n (3P - 1) / 2P. Poisoning, waking up
// and agreeing are the collective's own cost. The two are measured in turn; `of_bound` = bound / time, and from 1 MiB on
// at least 0.5 is asked for. `of_bound_cpu` is the same of the threads' CPU time, which other programs on the machine
// disturb less: there of_bound is low because woken ranks don't get a core at once.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/device.hpp"
#include "sharded/comm/communicator.hpp"

namespace {

using namespace shardcheck;

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Per call: seconds that pass until all ranks are through, and seconds that this rank's thread computes.
struct Times {
  double wall = 0.0, cpu = 0.0;
};
Times times_of(int calls, const std::function<void()>& meet, const std::function<void()>& call) {
  meet();
  const double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < calls; ++i) call();
  const double cpu_end = seconds(CLOCK_THREAD_CPUTIME_ID);
  meet();
  return {(seconds(CLOCK_MONOTONIC) - wall) / calls, (cpu_end - cpu) / calls};
}

void all_reduce(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  const auto device = builtin_devices().make("cpu");
  const auto world = builtin_worlds().make("threads", Mesh{{{"tp", ranks}}});
  std::vector<Ledger> ledgers(static_cast<std::size_t>(ranks));
  const int calls = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{64} << 20) / bytes / ranks, 1, 500));
  std::vector<Times> collective(ledgers.size()), copies(ledgers.size());  // sums over the iterations, by rank

  // Tensors live as long as the benchmark: memory fresh from the system is slow at its first touch.
  std::vector<Tensor> inputs, outputs;
  const auto main_stream = device->make_stream();
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(device->allocate(DType::f32, 1, bytes / 4));
    outputs.push_back(device->allocate(DType::f32, 1, bytes / 4));
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
      const Tensor tiny = device->allocate(DType::f32, 1, 0);
      const auto meet = [&] { tp->all_reduce(*stream, tiny, {}, tiny, {"meet", Phase::prefill, 0}); };
      const auto add = [&](std::vector<Times>& sums, const Times& times) {
        sums[self].wall += times.wall;
        sums[self].cpu += times.cpu;
      };
      const std::int64_t extra = bytes / 4 * (ranks - 1) / (2 * ranks);  // (3P - 1) / 2P = 1 + (P - 1) / 2P
      add(copies, times_of(calls, meet, [&] {
        device->copy(*stream, inputs[self], outputs[self]);
        device->copy(*stream, inputs[self].col_range(0, extra), outputs[self].col_range(0, extra));
      }));
      const Times reduced = times_of(calls, meet, [&] {
        tp->all_reduce(*stream, inputs[self], {}, outputs[self], {"mlp.down_proj", Phase::prefill, 0});
      });
      add(collective, reduced);
      ledgers[self].clear();
      if (rank == 0) state.SetIterationTime(reduced.wall);
    });
  }
  const auto cpu = [](const std::vector<Times>& sums) {
    double total = 0.0;
    for (const Times& times : sums) total += times.cpu;
    return total;
  };
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["bound_us"] = copies[0].wall / iterations * 1e6;
  state.counters["of_bound"] = copies[0].wall / collective[0].wall;
  state.counters["of_bound_cpu"] = cpu(copies) / cpu(collective);
  state.counters["algbw"] = benchmark::Counter(static_cast<double>(bytes) * iterations / collective[0].wall,
                                               benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
}

BENCHMARK(all_reduce)
    ->ArgNames({"ranks", "bytes"})
    ->ArgsProduct({{2, 4, 8}, {1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(3)  // each of many calls
    ->Repetitions(5)
    ->ReportAggregatesOnly(true);

}  // namespace

BENCHMARK_MAIN();
