// SPDX-License-Identifier: Apache-2.0
// Plans of other projects, read into a Plan with the meaning that they have there. Nothing is put right on the way.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.hpp"
#include "sharded/plan.hpp"
#include "sharded/plan_write.hpp"

namespace shardcheck {

enum class ImportSource { hf, dtensor, deepspeed, vllm };

/// Names, for --from: "hf", "dtensor", "deepspeed", "vllm". InputError names the valid words.
ImportSource parse_import_source(const std::string& word);
std::string_view name(ImportSource source);
/// The source's word for a row-parallel linear, and for one that cuts its input itself.
std::string_view row_parallel(ImportSource source);
std::string_view row_parallel_of_whole(ImportSource source);
/// Whether a source names modules in a way that only a model can tell: regular expressions, joined modules.
bool needs_model(ImportSource source);

struct ImportOptions {
  ImportSource source = ImportSource::hf;
  const Model* model = nullptr;  // null: rules stay patterns, and what no known family has is kept unchecked
  std::string select;            // of a file that holds several plans: which
  std::string name;              // of the plan; empty: the file's
  std::vector<int> sizes{
      1, 2, 4, 8};      // group sizes that explicit ranges are written for, where a cut needs them
  bool repair = false;  // whole heads, and everything else balanced
};

struct ImportedPlan {
  Plan plan;
  PlanRemarks remarks;             // the source's word beside each rule
  std::vector<std::string> notes;  // what was kept unchecked, what was put right
};

/// `origin` is the path named in messages. Throws InputError with line and column: malformed text, an unknown style
/// (with the nearest), a rule that matches no module of the model, a module that two rules name, a style that a module
/// of this kind can't have, a style whose input nobody provides as it needs it.
ImportedPlan import_plan(std::string_view text, const std::string& origin,
                         const ImportOptions& options);

}  // namespace shardcheck
