// SPDX-License-Identifier: Apache-2.0
// Whole f32 prefill of SmolLM2-135M on the cpu device at TP 1 and 2 (one thread per rank), against the reference in
// f32 (one thread), logits of every token included. The two are measured in turn, so that both see the same machine:
// `of_reference` = reference's time / program's time, `of_reference_cpu` the same of CPU time. The reference reads the
// checkpoint's quantised weights anew in every pass, the program once before the first; `reference_ms` includes that.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/clock.hpp"
#include "model/error.hpp"
#include "reference/transformer.hpp"
#include "sharded/op.hpp"
#include "sharded/runner.hpp"

namespace {

using namespace shardcheck;

/// Elapsed time, and the CPU time of all threads: other programs on the machine disturb the second less.
struct Took {
  double wall = 0.0, cpu = 0.0;  // seconds
  Took& operator+=(const Took& other) {
    wall += other.wall;
    cpu += other.cpu;
    return *this;
  }
};
Took time_of(const auto& work) {
  const double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
  work();
  return {seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu};
}

/// What every benchmark of this file shares: the weights are read and widened once.
struct Prepared {
  explicit Prepared(const Model& loaded) : model(loaded), weights(loaded, DType::f32) {
    weights.load_all(static_cast<int>(std::thread::hardware_concurrency()));
  }
  const Model& model;
  WeightStore weights;
  const Registry ops = builtin_ops();
  const Plan plan = load_plan("megatron");
  const std::unique_ptr<Device> device = builtin_devices().make("cpu");
};

/// `tokens` different ids, spread over the vocabulary.
Step prompt(std::int64_t tokens, std::int64_t vocabulary) {
  Step step;
  step.sequences = {{0, 0, tokens}};
  for (std::int64_t i = 0; i < tokens; ++i) step.ids.push_back((i * 7919 + 13) % vocabulary);
  return step;
}

void prefill(benchmark::State& state, Prepared& prepared, int ranks, std::int64_t tokens) {
  const Mesh mesh{{{"tp", ranks}}};
  const Program program = build_program(prepared.model,
                                        resolve(prepared.plan, prepared.model, mesh), prepared.ops);
  const std::unique_ptr<World> world = builtin_worlds().make("threads", mesh);
  Device* const devices[] = {prepared.device.get()};
  const std::vector<Step> steps{prompt(tokens, prepared.model.config().vocab_size)};
  reference::Transformer<float> reference(prepared.model);
  Took program_took, reference_took;
  for (auto _ : state) {
    const Took took = time_of([&] {
      benchmark::DoNotOptimize(
          run_program(program, *world, devices, prepared.weights, RunSettings{}, steps));
    });
    state.SetIterationTime(took.wall);
    program_took += took;
    reference.reset();
    reference_took += time_of([&] { benchmark::DoNotOptimize(reference.forward(steps[0].ids)); });
  }
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["tokens/s"] = static_cast<double>(tokens) * iterations / program_took.wall;
  state.counters["cpu_ms"] = 1e3 * program_took.cpu / iterations;
  state.counters["reference_ms"] = 1e3 * reference_took.wall / iterations;
  state.counters["of_reference"] = reference_took.wall / program_took.wall;
  state.counters["of_reference_cpu"] = reference_took.cpu / program_took.cpu;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

void describe_machine() {
  benchmark::AddCustomContext("cpu", cpu_model());
  benchmark::AddCustomContext("cores", std::to_string(std::thread::hardware_concurrency()));
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::AddCustomContext("flags", SHARDCHECK_COMPILER_FLAGS);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::optional<Model> model;
  try {
    model.emplace(load_model("smollm2"));
  } catch (const InputError& error) {
    std::fprintf(stderr, "bench_prefill: %s\n", error.what());
    return 2;
  }
  Prepared prepared(*model);
  describe_machine();
  for (const std::int64_t tokens : {32, 512}) {
    for (const int ranks : {1, 2}) {
      benchmark::RegisterBenchmark(fmt::format("prefill/f32/tokens:{}/tp:{}", tokens, ranks).c_str(),
                                   [&prepared, ranks, tokens](benchmark::State& state) {
                                     prefill(state, prepared, ranks, tokens);
                                   })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->Iterations(tokens <= 32 ? 3 : 1)
          ->Repetitions(3)
          ->ReportAggregatesOnly(true);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
