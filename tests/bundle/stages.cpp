// SPDX-License-Identifier: Apache-2.0
#include "tests/bundle/stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <system_error>

#include "tests/bundle/process.hpp"

namespace shardcheck::bundle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSmolLm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";

using Command = std::vector<std::string>;

/// SmolLM2's file in the bundle, beside it, or in the current folder; empty if it is nowhere.
fs::path find_smollm2(const fs::path& root) {
  std::error_code error;
  for (const fs::path& folder : {root, root.parent_path(), fs::current_path()}) {
    if (fs::is_regular_file(folder / kSmolLm2, error)) return folder / kSmolLm2;
  }
  return {};
}

class Stages {
 public:
  explicit Stages(const Bundle& bundle) : bundle_(bundle) {}

  std::vector<Stage> all() {
    tests("kernels", "every kernel against its twin", "-*Gpu*", 80.0);
    tests("collectives", "ranks on one device: the bits of the CPU's collectives",
          "*GpuCollectives*", 30.0);
    verify("tiny-llama", "tiny-llama", "1,2,4,8", 25.0);
    verify("tiny-gpt2", "tiny-gpt2", "1,2,4,6", 25.0);  // 6 heads: on 8 ranks some would have none
    verify("tiny-qwen2", "tiny-qwen2", "1,2,4,6", 25.0);
    tests("repeatability", "linears and whole runs twice in one process",
          "*GpuRepeats*:*GpuRunRepeats*", 30.0);
    two_processes();
    smollm2();
    benchmarks();
    return std::move(stages_);
  }

 private:
  std::string program(const char* name) const { return (bundle_.root / "bin" / name).string(); }

  void tests(const std::string& name, const std::string& about, const std::string& filter,
             double limit) {
    const fs::path report = bundle_.work / (name + ".json");
    stages_.push_back({name,
                       about,
                       limit,
                       {{program("gpu_tests"), "--gtest_filter=" + filter,
                         "--gtest_output=json:" + report.string()}},
                       [report] { return test_figures(report); },
                       ""});
  }

  void verify(const std::string& title, const std::string& model, const std::string& sizes,
              double limit) {
    const fs::path report = bundle_.work / fmt::format("verify-{}.json", title);
    const Command command = {
        program("shardcheck"), "verify", model,          "--plan",  "megatron",      "--device",
        bundle_.device,        "--tp",   sizes,          "--dtype", "f32,bf16,fp16", "--phase",
        "prefill,decode",      "--json", report.string()};
    const std::size_t cells = 4 * 3 * 2;
    stages_.push_back({"verify " + title,
                       "TP sizes, precisions and phases on one device, all gates",
                       limit,
                       {command},
                       [report, cells] { return verify_figures(report, cells); },
                       ""});
  }

  void two_processes() {
    const fs::path first = bundle_.work / "taps-1", second = bundle_.work / "taps-2";
    const auto command = [&](const fs::path& folder) {
      return Command{program("shardcheck"),
                     "verify",
                     "tiny-llama",
                     "--plan",
                     "megatron",
                     "--device",
                     bundle_.device,
                     "--tp",
                     "1,4",
                     "--dtype",
                     "f32,bf16",
                     "--phase",
                     "prefill",
                     "--dump",
                     folder.string()};
    };
    stages_.push_back({"repeated run",
                       "every tap of a run in a second process",
                       30.0,
                       {command(first), command(second)},
                       [first, second] { return same_files(first, second); },
                       ""});
  }

  void smollm2() {
    const fs::path file = find_smollm2(bundle_.root);
    verify("SmolLM2-135M", file.string(), "1,2,4,8", 75.0);
    Stage& stage = stages_.back();
    if (file.empty()) {
      stage.skipped = fmt::format("{} is neither in the bundle's folder nor beside it", kSmolLm2);
    } else if (bundle_.device == "emu") {
      stage.skipped = fmt::format("too large for --device {}", bundle_.device);
    }
  }

  void benchmarks() {
    const fs::path report = bundle_.work / "benchmarks.json";
    stages_.push_back({"benchmarks",
                       "every kernel's rate over the device's measured ceilings",
                       50.0,
                       {{program("bench_kernels"), "--device=" + bundle_.device,
                         "--benchmark_out_format=json", "--benchmark_out=" + report.string()}},
                       [report] { return benchmark_figures(report); },
                       ""});
  }

  const Bundle& bundle_;
  std::vector<Stage> stages_;
};

/// What a command's end says: empty if all is well.
std::string problem_of(const Ended& ended, const Command& command) {
  const std::string program = fs::path(command.front()).filename().string();
  if (ended.timed_out)
    return fmt::format("{} was still running after {:.0f} s", program, ended.seconds);
  if (ended.code > 128) return fmt::format("{} was ended by signal {}", program, ended.code - 128);
  if (ended.code != 0) return fmt::format("{} ended with exit code {}", program, ended.code);
  return "";
}

}  // namespace

std::vector<Stage> stages_of(const Bundle& bundle) { return Stages(bundle).all(); }

std::string name(Status status) {
  switch (status) {
    case Status::passed:
      return "passed";
    case Status::failed:
      return "failed";
    case Status::skipped:
      return "skipped";
    case Status::not_run:
      return "not run";
  }
  return "";
}

Outcome run_stage(const Stage& stage, const Bundle& bundle, double seconds) {
  Outcome outcome;
  if (!stage.skipped.empty()) {
    outcome.status = Status::skipped;
    outcome.reason = stage.skipped;
    return outcome;
  }
  if (seconds <= 1.0) {
    outcome.reason = "no time was left";
    return outcome;
  }
  setenv("SHARDCHECK_TEST_DEVICE", bundle.device.c_str(), 1);
  setenv("SHARDCHECK_REQUIRE_GPU", "1", 1);  // a test that finds no device has failed
  std::string log_name = stage.name + ".log";
  std::replace(log_name.begin(), log_name.end(), ' ', '-');
  const fs::path log = bundle.work / log_name;
  const double limit = std::min(stage.limit, seconds);
  std::string problem;
  for (const Command& command : stage.commands) {
    const Ended ended = run_process(command, log, limit - outcome.seconds);
    outcome.seconds += ended.seconds;
    problem = problem_of(ended, command);
    if (!problem.empty()) break;
  }
  try {
    // What was written says more than an exit code. A program that ended badly has failed whatever it wrote.
    const Figures figures = stage.figures();
    outcome.figures = figures.values;
    outcome.summary = figures.summary;
    if (!figures.problem.empty()) problem = figures.problem;
  } catch (const std::exception& error) {
    if (problem.empty()) problem = error.what();
  }
  outcome.status = problem.empty() ? Status::passed : Status::failed;
  if (!problem.empty()) {
    const std::string last = tail(log, 20);
    outcome.reason = last.empty() ? problem
                                  : fmt::format("{}; the end of its output:\n{}", problem, last);
  }
  return outcome;
}

}  // namespace shardcheck::bundle
