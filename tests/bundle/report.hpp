// SPDX-License-Identifier: Apache-2.0
// The bundle's table and its JSON, schema shardcheck.gpu-run/1.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/bundle/stages.hpp"

namespace shardcheck::bundle {

struct Report {
  std::string date;             // UTC, ISO 8601
  Json build = Json::object();  // what the bundle says about itself, build.json
  std::string kind;             // of device
  std::string device;           // in words
  std::string driver;           // version; empty if unknown
  std::string cpu;
  unsigned cores = 0;
  std::string glibc;
  std::vector<std::pair<Stage, Outcome>> stages;
  double seconds = 0.0;

  std::size_t count(Status status) const;
  /// Nothing failed, nothing was left out for want of time, and something was run.
  bool passed() const;
};

/// The machine that this runs on.
void describe_host(Report& report);

std::string table_head(const Report& report);
std::string table_line(const Stage& stage, const Outcome& outcome);
/// "7 passed, 0 failed, 1 skipped, 0 not run in 141 s".
std::string table_end(const Report& report);

Json report_json(const Report& report);

}  // namespace shardcheck::bundle
