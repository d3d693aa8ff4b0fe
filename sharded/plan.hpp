// SPDX-License-Identifier: Apache-2.0
// A partition plan: which weights are cut how, and which collectives run at which activation points. Data, not code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/reduction.hpp"
#include "model/model.hpp"
#include "sharded/layout.hpp"
#include "sharded/ledger.hpp"
#include "sharded/mesh.hpp"
#include "sharded/step.hpp"

namespace shardcheck {

/// The dimension words of a plan.
enum class PlanDim { out, in, vocab, features, tokens, sequence, head, kv_head };
/// The natural unit that a cut may not split. `chunk`: pieces of ceil(n/P) rows, as torch.chunk cuts.
enum class CutUnit { row, head, kv_head, group, chunk };

/// How one axis cuts one module's weight.
struct WeightCut {
  bool sharded = false;
  PlanDim dim = PlanDim::out;
  CutUnit unit = CutUnit::row;
  /// Explicit ranges in units: axis size -> per rank. Empty: the balanced cut.
  std::map<int, std::vector<Ranges>> ranges;
};

/// One step at an activation point.
struct CollectiveStep {
  enum class Kind { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, slice };
  Kind kind = Kind::all_reduce;
  ReduceOp op = ReduceOp::sum;  // all_reduce, reduce_scatter
  PlanDim dim = PlanDim::features;  // reduce_scatter, all_gather, slice; all_to_all: the split dimension
  PlanDim concat = PlanDim::features;  // all_to_all
  int root = 0;                        // broadcast
  std::vector<std::string> axes;       // one group over all of them
  bool operator==(const CollectiveStep&) const = default;
};
std::string to_string(const CollectiveStep& step);  // "all_reduce(sum, tp)"

/// A rule as written: a pattern and what it asks for. `line` is for messages.
struct WeightRule {
  std::string pattern;
  std::map<std::string, WeightCut> cuts;  // by axis
};
struct CollectiveRule {
  std::string pattern;
  std::vector<CollectiveStep> steps;
};
struct PlanSection {
  std::vector<WeightRule> weights;
  std::vector<CollectiveRule> collectives;
  std::map<Phase, std::vector<CollectiveRule>> phase;  // overrides of `collectives` in one phase
};

struct Plan {
  std::string name;
  std::string origin;  // path, for messages and repro commands
  std::vector<std::string> mesh;
  std::map<std::string, PlanSection> families;  // by model_type; "" where the plan has no `families`
};

/// Parses a plan (JSON with // and /* */ comments). Throws InputError with line and column, or naming the unknown
/// word and the nearest valid one.
Plan parse_plan(std::string_view text, const std::string& origin);
Plan load_plan(const std::string& file_or_name);

/// How a module's weight is spread over the mesh.
struct ModulePlacement {
  struct AxisCut {
    int axis = 0;
    bool rows = true;  // rows (out, vocab, a norm's features) or columns (in)
  };
  std::vector<AxisCut> cuts;  // only axes of more than one rank; outer first
  std::vector<Ranges> rows;   // by rank of the mesh, element indices; empty: all rows everywhere
  std::vector<Ranges> cols;   // likewise
  bool may_overlap = false;   // by kv_head

  const AxisCut* on(int axis) const;
};

/// A plan applied to one model on one mesh: every pattern matched, every range computed.
struct ResolvedPlan {
  Mesh mesh;
  std::map<std::string, ModulePlacement, std::less<>> weights;  // by module path; every module has an entry
  std::map<Phase, std::map<std::string, std::vector<CollectiveStep>, std::less<>>> points;

  const ModulePlacement& placement(std::string_view module) const;
  /// Rows and columns of a module's weight that a rank holds.
  Ranges rows_of(const Module& module, int rank) const;
  Ranges cols_of(const Module& module, int rank) const;
  /// Steps at a point ("layers.0.mlp.down_proj.out") in a phase; empty if there are none.
  const std::vector<CollectiveStep>& steps(Phase phase, std::string_view point) const;
};

/// Throws InputError: no section for the model type, a pattern that matches nothing or a module matched twice (with
/// the nearest name), a group with more ranks than heads (with the largest size that works), ranges that leave a gap.
ResolvedPlan resolve(const Plan& plan, const Model& model, const Mesh& mesh);

/// True if a module or point path matches a pattern: `*` stands for any run of characters without a dot, `{a,b}` for
/// one of several words.
bool matches(std::string_view pattern, std::string_view path);

}  // namespace shardcheck
