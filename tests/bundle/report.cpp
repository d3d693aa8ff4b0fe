// SPDX-License-Identifier: Apache-2.0
#include "tests/bundle/report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <regex>
#include <thread>

namespace shardcheck::bundle {
namespace {

std::string first_match(const char* file, const std::regex& pattern) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) return match[1].str();
  }
  return "";
}

}  // namespace

std::size_t Report::count(Status status) const {
  return static_cast<std::size_t>(std::count_if(
      stages.begin(), stages.end(), [&](const auto& entry) { return entry.second.status == status; }));
}

bool Report::passed() const {
  return count(Status::failed) == 0 && count(Status::not_run) == 0 && count(Status::passed) > 0;
}

void describe_host(Report& report) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  report.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  report.driver = first_match("/proc/driver/nvidia/version",
                              std::regex(R"(Module\s.*?(\d+\.\d+(?:\.\d+)?))"));
  report.cpu = first_match("/proc/cpuinfo", std::regex(R"(^model name\s*:\s*(.*))"));
  report.cores = std::thread::hardware_concurrency();
  report.glibc = gnu_get_libc_version();
}

std::string table_head(const Report& report) {
  return fmt::format(
      "shardcheck {}, revision {}, {}\ndevice  {}: {}\ndriver  {}\n\n{:<20}{:<9}{:>8}  {}\n",
      report.build.value("version", "?"), report.build.value("revision", "?"), report.date,
      report.kind, report.device, report.driver.empty() ? "-" : report.driver, "stage", "result",
      "seconds", "key figures");
}

std::string table_line(const Stage& stage, const Outcome& outcome) {
  const std::string text = outcome.status == Status::passed ? outcome.summary : outcome.reason;
  return fmt::format("{:<20}{:<9}{:>8.1f}  {}\n", stage.name, name(outcome.status), outcome.seconds,
                     text);
}

std::string table_end(const Report& report) {
  return fmt::format("{} passed, {} failed, {} skipped, {} not run in {:.0f} s",
                     report.count(Status::passed), report.count(Status::failed),
                     report.count(Status::skipped), report.count(Status::not_run), report.seconds);
}

Json report_json(const Report& report) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  Json json;
  json["schema"] = "shardcheck.gpu-run/1";
  json["date"] = report.date;
  json["build"] = report.build;
  json["device"] = {{"kind", report.kind}, {"description", report.device}};
  json["driver"] = or_null(report.driver);
  json["host"] = {{"cpu", or_null(report.cpu)}, {"cores", report.cores}, {"glibc", report.glibc}};
  json["stages"] = Json::array();
  for (const auto& [stage, outcome] : report.stages) {
    json["stages"].push_back({{"name", stage.name},
                              {"about", stage.about},
                              {"status", name(outcome.status)},
                              {"seconds", outcome.seconds},
                              {"limit_seconds", stage.limit},
                              {"reason", or_null(outcome.reason)},
                              {"figures", outcome.figures}});
  }
  json["summary"] = {{"passed", report.count(Status::passed)},
                     {"failed", report.count(Status::failed)},
                     {"skipped", report.count(Status::skipped)},
                     {"not_run", report.count(Status::not_run)}};
  json["seconds"] = report.seconds;
  return json;
}

}  // namespace shardcheck::bundle
