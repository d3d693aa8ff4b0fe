// SPDX-License-Identifier: Apache-2.0
// Checking a plan on a model of any size: lint and prove of llama-3.1-405b at TP 8, and a proof of a tiny model, of
// which the fault suite makes hundreds. `cpu_s` is the CPU time of all threads, `peak_mib` the process's largest
// memory while the benchmark ran.
#include "harness/prove.hpp"

#include <benchmark/benchmark.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "bench/clock.hpp"
#include "harness/lint.hpp"

namespace {

using namespace shardcheck;

/// Forgets the largest memory so far; false where the kernel doesn't let it.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  file.close();
  return !file.fail();
}

double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kib = 0.0;
    if (word == "VmHWM:" && status >> kib) return kib / 1024.0;
  }
  return 0.0;
}

Model shapes(const char* name) {
  ModelOptions options;
  options.shapes_only = true;
  return load_model(name, options);
}

void measured(benchmark::State& state, const auto& work) {
  const bool peak_is_ours = reset_peak();
  const double before = seconds(CLOCK_PROCESS_CPUTIME_ID);
  for (auto _ : state) work();
  const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
  state.counters["cpu_s"] = cpu / static_cast<double>(state.iterations());
  if (peak_is_ours) state.counters["peak_mib"] = peak_mib();
}

/// Reading config and plan included.
void lint_405b(benchmark::State& state) {
  const Registry ops = builtin_ops();
  measured(state, [&] {
    const LintReport report = lint(shapes("llama-3.1-405b"), load_plan("megatron"),
                                   {Mesh{{{"tp", 8}}}}, ops);
    if (!report.passed()) state.SkipWithError("not legal");
  });
}
BENCHMARK(lint_405b)->Unit(benchmark::kMillisecond)->UseRealTime();

void prove(benchmark::State& state, const char* model_name, int ranks) {
  const VerifyParts parts = builtin_parts();
  const Plan plan = load_plan("megatron");
  const Model model = shapes(model_name);
  ProveOptions options;
  options.meshes = {Mesh{{{"tp", ranks}}}};
  options.phases = {Phase::prefill, Phase::decode};
  double seeds = 0.0, log2_chance = 0.0;
  measured(state, [&] {
    const ProveReport report = shardcheck::prove(model, plan, options, parts);
    if (!report.passed()) state.SkipWithError("not equal");
    for (const ProveCell& cell : report.cells) {
      seeds = cell.seeds;
      log2_chance = cell.log2_chance;
    }
  });
  state.counters["seeds"] = seeds;
  state.counters["log2_chance"] = log2_chance;
}
BENCHMARK_CAPTURE(prove, llama_3_1_405b_tp8, "llama-3.1-405b", 8)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Iterations(1);
BENCHMARK_CAPTURE(prove, tiny_llama_tp4, "tiny-llama", 4)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
