// SPDX-License-Identifier: Apache-2.0
#include "tests/bundle/figures.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

namespace shardcheck::bundle {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream)
    throw std::runtime_error(fmt::format("{} was not written", file.filename().string()));
  return bytes;
}

Json parse(const fs::path& file) { return Json::parse(bytes_of(file)); }

/// The worse of two margins; NaN is the worst.
double worse(double a, double b) { return std::isnan(a) || a < b ? a : b; }

/// A margin as verify writes it: a number, "inf" or "nan".
double margin_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  return value == "inf" ? std::numeric_limits<double>::infinity()
                        : std::numeric_limits<double>::quiet_NaN();
}

std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)));
  return fmt::format("{}{}", fmt::join(first, ", "),
                     names.size() > kMost ? fmt::format(" and {} more", names.size() - kMost) : "");
}

std::set<fs::path> files_in(const fs::path& folder) {
  std::set<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.insert(fs::relative(entry.path(), folder));
  }
  return files;
}

std::string with_prefix(double value, const std::string& unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (value >= 1000.0 && prefix + 1 < std::size(kPrefixes)) {
    value /= 1000.0;
    ++prefix;
  }
  return fmt::format("{:.3g} {}{}", value, kPrefixes[prefix], unit);
}

}  // namespace

Figures test_figures(const fs::path& report) {
  const Json json = parse(report);
  std::vector<std::string> failed, skipped;
  std::size_t passed = 0;
  for (const Json& suite : json.at("testsuites")) {
    for (const Json& test : suite.at("testsuite")) {
      const std::string name = fmt::format("{}.{}", suite.at("name").get<std::string>(),
                                           test.at("name").get<std::string>());
      if (test.value("status", "") != "RUN") continue;  // filtered out
      if (test.contains("failures")) {
        failed.push_back(name);
      } else if (test.value("result", "") == "SKIPPED") {
        skipped.push_back(name);
      } else {
        ++passed;
      }
    }
  }
  Figures figures;
  figures.values = {{"passed", passed}, {"failed", failed.size()}, {"skipped", skipped.size()}};
  if (!failed.empty()) figures.values["failed_tests"] = failed;
  if (!skipped.empty()) figures.values["skipped_tests"] = skipped;
  figures.summary = fmt::format("{} tests", passed);
  if (!failed.empty()) {
    figures.problem = fmt::format("{} of {} tests failed: {}", failed.size(),
                                  passed + failed.size(), some(failed));
  } else if (!skipped.empty()) {
    figures.problem = fmt::format("{} tests were skipped: {}", skipped.size(), some(skipped));
  } else if (passed == 0) {
    figures.problem = "no test was run";
  }
  return figures;
}

Figures verify_figures(const fs::path& report, std::size_t cells) {
  const Json json = parse(report);
  if (json.at("schema") != "shardcheck.verify/1")
    throw std::runtime_error("not a shardcheck.verify/1 report");
  std::size_t passed = 0;
  std::string first_bad;
  std::map<std::string, double> margins;  // by gate
  double smallest = std::numeric_limits<double>::infinity();
  std::string where;
  for (const Json& cell : json.at("cells")) {
    if (cell.at("verdict") == "passed") {
      ++passed;
    } else if (first_bad.empty()) {
      first_bad = fmt::format("{}; {}", cell.at("verdict").get<std::string>(),
                              cell.at("repro").get<std::string>());
    }
    for (const auto& [gate, result] : cell.at("gates").items()) {
      if (result.at("margin").is_null()) continue;
      const double margin = margin_of(result.at("margin"));
      const auto known = margins.try_emplace(gate, margin).first;
      known->second = worse(known->second, margin);
      if (!(margin >= smallest) || where.empty()) where = std::isnan(smallest) ? where : gate;
      smallest = worse(margin, smallest);
    }
  }
  Figures figures;
  figures.values = {{"cells", json.at("cells").size()}, {"passed", passed}};
  for (const auto& [gate, margin] : margins) {
    figures.values["smallest_margin"][gate] = std::isfinite(margin) ? Json(margin)
                                                                    : Json(fmt::format("{}", margin));
  }
  figures.summary = fmt::format("{} of {} cells, smallest margin {:.3g}x ({})", passed, cells,
                                smallest, where);
  if (json.at("cells").size() != cells) {
    figures.problem = fmt::format("{} cells were run, not {}", json.at("cells").size(), cells);
  } else if (passed != cells) {
    figures.problem = fmt::format("{} of {} cells did not pass; the first: {}", cells - passed,
                                  cells, first_bad);
  } else if (cells == 0) {
    figures.problem = "no cell was run";
  }
  return figures;
}

Figures benchmark_figures(const fs::path& report) {
  const Json json = parse(report);
  Figures figures;
  double copy = 0.0, linear = 0.0;
  Json ceilings = Json::object(), kernels = Json::object();
  for (const auto& [key, value] : json.at("context").items()) {
    if (!key.starts_with("ceiling_")) continue;
    const double number = std::stod(value.get<std::string>());
    ceilings[key.substr(8)] = number;
    (key.find("copy") != std::string::npos ? copy : linear) = std::max(
        number, key.find("copy") != std::string::npos ? copy : linear);
  }
  std::vector<std::string> broken;
  double lowest = std::numeric_limits<double>::infinity(), highest = 0.0;
  for (const Json& run : json.at("benchmarks")) {
    std::string name = run.at("run_name").get<std::string>();
    name = name.substr(0, name.find("/iterations:"));
    if (run.value("error_occurred", false) || !run.contains("of_ceiling")) {
      broken.push_back(name);
      continue;
    }
    const char* const unit = run.contains("B/s") ? "B/s" : "flop/s";
    const double share = run.at("of_ceiling").get<double>();
    kernels[name] = {{unit, run.at(unit)}, {"of_ceiling", share}, {"us", run.at("real_time")}};
    lowest = std::min(lowest, share);
    highest = std::max(highest, share);
  }
  figures.values = {{"ceilings", ceilings}, {"kernels", kernels}};
  figures.summary = fmt::format("copy {}, linear {}; {} kernels at {:.0f} to {:.0f} % of these",
                                with_prefix(copy, "B/s"), with_prefix(linear, "flop/s"),
                                kernels.size(), 100 * lowest, 100 * highest);
  if (!broken.empty()) figures.problem = fmt::format("no result for {}", some(broken));
  if (kernels.empty()) figures.problem = "no kernel was measured";
  return figures;
}

Figures same_files(const fs::path& first, const fs::path& second) {
  const std::set<fs::path> files = files_in(first);
  Figures figures;
  figures.values = {{"files", files.size()}};
  figures.summary = fmt::format("{} files of taps twice the same", files.size());
  if (files.empty()) {
    figures.problem = "no taps were written";
  } else if (files != files_in(second)) {
    figures.problem = "the second run wrote other files than the first";
  } else {
    std::vector<std::string> differing;
    for (const fs::path& file : files) {
      if (bytes_of(first / file) != bytes_of(second / file)) differing.push_back(file.string());
    }
    if (!differing.empty())
      figures.problem = fmt::format("a second run gave other bits in {}", some(differing));
  }
  return figures;
}

}  // namespace shardcheck::bundle
