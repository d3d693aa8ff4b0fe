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
/// The dimension of an activation that a word means: head, kv_head and vocab are units of its features.
Dim activation_dim(PlanDim dim);
/// The natural unit that a cut may not split. `chunk`: pieces of ceil(n/P) rows, as torch.chunk cuts.
enum class CutUnit { row, head, kv_head, group, chunk };

/// How one axis cuts one module's weight.
struct WeightCut {
  bool sharded = false;
  PlanDim dim = PlanDim::out;
  CutUnit unit = CutUnit::row;
  /// Explicit ranges in units: axis size -> per rank. Empty: the balanced cut.
  std::map<int, std::vector<Ranges>> ranges;
  bool operator==(const WeightCut&) const = default;
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

/// Where a rule stands in the plan's file, for messages; 0: in none. Rules that say the same are equal wherever they stand.
struct TextPlace {
  int line = 0, column = 0;
  bool operator==(const TextPlace&) const { return true; }
};
/// A rule as written: a pattern and what it asks for.
struct WeightRule {
  std::string pattern;
  std::map<std::string, WeightCut> cuts;  // by axis
  TextPlace place;
  bool operator==(const WeightRule&) const = default;
};
struct CollectiveRule {
  std::string pattern;
  std::vector<CollectiveStep> steps;
  TextPlace place;
  bool operator==(const CollectiveRule&) const = default;
};
/// What an imported plan asks for and no rule here can say: kept by name, reported, never checked.
struct UncheckedRule {
  std::string pattern, style;
  bool operator==(const UncheckedRule&) const = default;
};
/// Values ("layers.*.self_attn.attn") that another op of the Registry computes, in place of the built-in one.
struct OpRule {
  std::string pattern, op;
  TextPlace place;
  bool operator==(const OpRule&) const = default;
};
struct PlanSection {
  std::vector<WeightRule> weights;
  std::vector<CollectiveRule> collectives;
  std::map<Phase, std::vector<CollectiveRule>> phase;  // overrides of `collectives` in one phase
  std::vector<OpRule> ops;
  std::vector<UncheckedRule> unchecked;
  bool operator==(const PlanSection&) const = default;
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
    CutUnit unit = CutUnit::row;
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
  /// By value: the op that computes it in place of the built-in one. Empty on one rank, where nothing is cut: the
  /// unsharded program is always the built-in ops'.
  std::map<std::string, std::string, std::less<>> ops;

  const ModulePlacement& placement(std::string_view module) const;
  /// Rows and columns of a module's weight that a rank holds.
  Ranges rows_of(const Module& module, int rank) const;
  Ranges cols_of(const Module& module, int rank) const;
  /// Steps at a point ("layers.0.mlp.down_proj.out") in a phase; empty if there are none.
  const std::vector<CollectiveStep>& steps(Phase phase, std::string_view point) const;
};

/// Which section serves a model type: its own, or llama's for newer members of that family. Throws InputError.
const PlanSection& section_for(const Plan& plan, const std::string& model_type);

/// Throws InputError: no section for the model type, a pattern that matches nothing or a module matched twice (with
/// the nearest name), a group with more ranks than heads (with the largest size that works), ranges that leave a gap.
ResolvedPlan resolve(const Plan& plan, const Model& model, const Mesh& mesh);

/// True if a module or point path matches a pattern: `*` stands for any run of characters without a dot, `{a,b}` for
/// one of several words.
bool matches(std::string_view pattern, std::string_view path);

}  // namespace shardcheck
