// SPDX-License-Identifier: Apache-2.0
// Ops that act on each element by itself: SwiGLU's gate, an activation, the residual add.
#include <fmt/format.h>

#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Shape and cost that all three share: the output is like the first operand.
class Elementwise : public Op {
 public:
  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }
  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>& inputs,
            const std::vector<Extent>& outputs) const override {
    return {flops_per_element() * outputs[0].rows * outputs[0].cols, operand_bytes(inputs, outputs)};
  }
  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    Tensor out = context.allocate(instruction.outputs[0]);
    compute(instruction, context, inputs, out);
    return {out};
  }

 private:
  virtual std::int64_t flops_per_element() const = 0;
  virtual void compute(const Instruction& instruction, RankContext& context,
                       const std::vector<Tensor>& inputs, const Tensor& out) const = 0;
};

/// y = silu(gate) * up, rounded once.                          all [M, D], placed alike, R or S; P is refused
class Gate final : public Elementwise {
 public:
  std::string_view name() const override { return "gate"; }
  Placed place(const PlaceQuery& query) const override {
    return place_elementwise(query, "silu(gate) * up");
  }

 private:
  std::int64_t flops_per_element() const override { return 5; }
  void compute(const Instruction&, RankContext& context, const std::vector<Tensor>& inputs,
               const Tensor& out) const override {
    context.device().gate(context.stream(), inputs[0], inputs[1], out);
  }
};

/// y = f(x), rounded once; attribute kind: 0 silu, 1 gelu_tanh.             x, y [M, D], R or S; P is refused
class Unary final : public Elementwise {
 public:
  std::string_view name() const override { return "unary"; }
  Placed place(const PlaceQuery& query) const override {
    return place_elementwise(query, "an activation");
  }

 private:
  std::int64_t flops_per_element() const override { return 8; }
  void compute(const Instruction& instruction, RankContext& context,
               const std::vector<Tensor>& inputs, const Tensor& out) const override {
    const UnaryKind kind = instruction.attributes.at("kind") == 0.0 ? UnaryKind::silu
                                                                    : UnaryKind::gelu_tanh;
    context.device().unary(context.stream(), kind, inputs[0], out);
  }
};

/// y = a + b, rounded once.            all [M, D]. R + R, S + S in the same ranges, P + P pass; P + R is refused: the
/// replicated operand would be added once per rank.
class Add final : public Elementwise {
 public:
  std::string_view name() const override { return "add"; }
  bool fusible() const override { return true; }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      const auto axis = static_cast<int>(i);
      const Placement& a = query.inputs[0].placements[i];
      const Placement& b = query.inputs[1].placements[i];
      if (a == b && a.kind != Placement::Kind::P_max) continue;
      if (a.is_partial() || b.is_partial()) {
        placed.violations.push_back(partial_plus_whole(query, a.is_partial() ? 0 : 1, axis));
      } else if (auto differing = operands_differ(query, axis, "an add")) {
        placed.violations.push_back(std::move(*differing));
      }
    }
    if (!placed.violations.empty()) return placed;
    if (query.inputs[0].owned != query.inputs[1].owned) {
      placed.violations.push_back({"ranges_differ", 1, 0, query.inputs[0].placements[0],
                                   query.inputs[0],
                                   "an add needs both operands cut in the same ranges", "", {}, 0});
      return placed;
    }
    placed.outputs = {query.inputs[0]};
    return placed;
  }

 private:
  /// The sum over ranks would hold the other operand once per rank. It is to be placed like that one.
  static PlacementViolation partial_plus_whole(const PlaceQuery& query, int partial, int axis) {
    PlacementViolation violation = requires_replicated(
        query, partial, axis, "partial_plus_replicated",
        "a partial sum plus a replicated value: the sum over ranks would hold the replicated value once per rank");
    const Layout& other = query.inputs[static_cast<std::size_t>(1 - partial)];
    const Placement& required = other.placements[static_cast<std::size_t>(axis)];
    if (required.kind == Placement::Kind::S && query.inputs[static_cast<std::size_t>(partial)]
                                                       .placements[static_cast<std::size_t>(axis)]
                                                       .kind == Placement::Kind::P_sum) {
      violation.required = required;
      violation.assumed = other;
      violation.sentence = "a partial sum plus a value that is cut: each rank would add its share to a part of the other";
    }
    return violation;
  }

  std::int64_t flops_per_element() const override { return 1; }
  void compute(const Instruction&, RankContext& context, const std::vector<Tensor>& inputs,
               const Tensor& out) const override {
    context.device().add(context.stream(), inputs[0], inputs[1], out);
  }
};

}  // namespace

std::unique_ptr<const Op> make_gate() { return std::make_unique<Gate>(); }
std::unique_ptr<const Op> make_unary() { return std::make_unique<Unary>(); }
std::unique_ptr<const Op> make_add() { return std::make_unique<Add>(); }

}  // namespace shardcheck::ops
