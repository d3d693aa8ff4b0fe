// SPDX-License-Identifier: Apache-2.0
// What the programs of the bundle wrote, boiled down to key figures.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace shardcheck::bundle {

using Json = nlohmann::ordered_json;

/// A stage's own judgement of its output. A file that is missing, cut short or of another kind throws std::exception.
struct Figures {
  std::string problem;  // empty: nothing wrong in what was written
  std::string summary;  // for the table, a few words
  Json values = Json::object();
};

/// Of a GoogleTest program's --gtest_output=json: no test run at all is a problem, and so is one that was skipped.
Figures test_figures(const std::filesystem::path& report);

/// Of `shardcheck verify --json` (shardcheck.verify/1), which must hold `cells` cells: the smallest margin of each gate.
Figures verify_figures(const std::filesystem::path& report, std::size_t cells);

/// Of bench_kernels' --benchmark_out: the ceilings, and every kernel's rate and share of them.
Figures benchmark_figures(const std::filesystem::path& report);

/// Two folders of taps that must hold the same files with the same bytes, at least one of them.
Figures same_files(const std::filesystem::path& first, const std::filesystem::path& second);

}  // namespace shardcheck::bundle
