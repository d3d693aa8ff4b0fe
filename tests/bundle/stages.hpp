// SPDX-License-Identifier: Apache-2.0
// What the bundle runs, in order.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/bundle/figures.hpp"

namespace shardcheck::bundle {

/// Programs of the bundle that are run one after the other, and what is read from what they wrote.
struct Stage {
  std::string name;
  std::string about;   // one line
  double limit = 0.0;  // seconds, for all commands together
  std::vector<std::vector<std::string>> commands;
  std::function<Figures()> figures;
  std::string skipped;  // not empty: why it can't be run here
};

struct Bundle {
  std::filesystem::path root;  // holds bin/, modules/, share/
  std::filesystem::path work;  // for what the programs write
  std::string device = "cuda";
};

/// Every stage, for any device: another than cuda tries the bundle out on a machine without a GPU.
std::vector<Stage> stages_of(const Bundle& bundle);

enum class Status { passed, failed, skipped, not_run };
std::string name(Status status);

struct Outcome {
  Status status = Status::not_run;
  double seconds = 0.0;
  std::string reason;   // why not passed
  std::string summary;  // for the table
  Json figures = Json::object();
};

/// Runs one stage for at most `seconds` (and at most its own limit). Nothing left of the time: not run.
Outcome run_stage(const Stage& stage, const Bundle& bundle, double seconds);

}  // namespace shardcheck::bundle
