// SPDX-License-Identifier: Apache-2.0
// `shardcheck lint`: the placement rules that a plan breaks and the exchanges it could save, without numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "sharded/placement_rule_names.hpp"
#include "sharded/plan.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

/// One finding, for all layers that have it alike.
struct LintFinding {
  Severity severity = Severity::error;
  Finding finding;                   // tap and fix have `*` for the layer where there are several
  std::vector<std::int64_t> layers;  // ascending; empty: outside the blocks
  std::optional<std::int64_t> bytes;  // wasted per token and layer, at two bytes an element; none: not about bytes
};

/// What a plan does on one mesh. Errors come first, each kind in program order.
struct MeshLint {
  Mesh mesh;
  std::vector<LintFinding> findings;
  std::size_t count(Severity severity) const;
};

struct LintReport {
  std::string model, plan;
  std::string origin;  // the plan's file, which begins each block of the text
  std::vector<MeshLint> meshes;
  std::size_t count(Severity severity) const;
  bool passed() const { return count(Severity::error) == 0; }
};

/// Planted faults of the programs of more than one rank: applied after the plan was resolved, and after the program was
/// built. Null: none.
struct LintOptions {
  std::function<void(ResolvedPlan&)> edit_plan;
  std::function<void(Program&)> edit_program;
};

/// The findings of a program, errors and warnings. A group of one moves nothing and wastes nothing.
std::vector<LintFinding> lint(const Program& program);
/// The same for a plan on each mesh. Reads shapes alone. Throws InputError as resolve() does.
LintReport lint(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes,
                const Registry& ops, const LintOptions& options = {});

/// "0-125", "0, 2-5"; empty for none.
std::string layers_text(const std::vector<std::int64_t>& layers);
/// Blocks of findings, a heading per mesh where there are several, and a last line that counts them.
std::string lint_text(const LintReport& report);
/// Schema "shardcheck.lint/1".
std::string lint_json(const LintReport& report);
/// The placement rules that a plan breaks, one block each: what a command prints that refuses a plan.
std::string findings_text(const std::vector<Finding>& findings, const std::string& plan);

}  // namespace shardcheck
