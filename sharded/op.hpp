// SPDX-License-Identifier: Apache-2.0
// Op: one file per op in sharded/ops. Its shape rule, its placement rule, its cost, and how it runs on a Device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.hpp"
#include "model/model.hpp"
#include "sharded/graph.hpp"
#include "sharded/layout.hpp"
#include "sharded/plan.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

class RankContext;

/// What a placement rule sees: the node, where its operands are, and how its module's weight is cut.
struct PlaceQuery {
  const Node& node;
  const Config& config;
  const Mesh& mesh;
  const Module* module = nullptr;           // null where the op has no weights
  const ModulePlacement* weight = nullptr;  // of the module; null like module
  std::vector<Layout> inputs;
};

/// Another way to repair the same mistake: operand `input` should have been placed otherwise, or the weight cut
/// otherwise, and then these outputs come out.
struct PlacementRepair {
  int input = 0;
  Placement required;
  std::vector<Layout> outputs;
  std::string fix;  // like PlacementViolation's
};

/// A broken placement rule. `input` is the operand that is placed wrongly on `axis`.
struct PlacementViolation {
  std::string rule;  // "partial_into_nonlinear"
  int input = 0;
  int axis = 0;
  Placement required;
  Layout assumed;        // layout of the operand to go on with under --force
  std::string sentence;  // the rule in words
  std::string fix;       // kRepairStep, kRecut, a plan's entry, or empty: none is known
  /// Of several repairs the one is assumed that leaves the fewest findings; 0 is the one above.
  std::vector<PlacementRepair> others{};
  std::size_t preferred = 0;
};
/// Fixes that the program's builder words: the step that takes the operand from how it is placed to how it should be,
/// and another cut of the weight that the operand comes from.
inline constexpr std::string_view kRepairStep = "step", kRecut = "recut";

/// Result of a placement rule: the layouts of the outputs, or what is wrong (then `outputs` is empty).
struct Placed {
  std::vector<Layout> outputs;
  std::vector<PlacementViolation> violations;
};

/// Work of one instruction on one rank, from shapes and positions alone.
struct Cost {
  std::int64_t flops = 0;
  std::int64_t bytes = 0;
};

/// Local shape of an operand: what the cost rule sees.
struct Extent {
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;
  std::int64_t bytes() const {
    return rows * cols * static_cast<std::int64_t>(element_size(dtype));
  }
};

class Op {
 public:
  virtual ~Op() = default;
  virtual std::string_view name() const = 0;
  /// Features of each output, from the config, the module and the inputs' features.
  virtual std::vector<std::int64_t> shapes(const Node& node, const Config& config, const Module* module,
                                           const std::vector<std::int64_t>& input_features) const = 0;
  virtual Placed place(const PlaceQuery& query) const = 0;
  virtual Cost cost(const Instruction& instruction, const RankContext& context,
                    const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) const = 0;
  /// Enqueues the work and returns the outputs. Only Device primitives and Communicator calls may be used.
  virtual std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                                  const std::vector<Tensor>& inputs) const = 0;
  /// What the rows of the outputs are.
  virtual ValueRows rows() const { return ValueRows::tokens; }
  /// True if it computes what the built-in op of its name does, so that a fused op may stand for it (sharded/fusion.hpp).
  virtual bool fusible() const { return false; }
};

/// Ops by name. A value that is passed in: a user's op is one `add`.
class Registry {
 public:
  void add(std::unique_ptr<const Op> op);
  const Op& find(std::string_view name) const;  // InputError names the nearest op
  std::vector<std::string> names() const;

 private:
  std::map<std::string, std::unique_ptr<const Op>, std::less<>> ops_;
};

/// embedding, linear, bias, rms_norm, head_norm, layer_norm, rms_statistic, rms_apply, rope, split, cache, attention,
/// gate, unary, add, add_rms_norm.
Registry builtin_ops();

}  // namespace shardcheck
