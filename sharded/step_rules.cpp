// SPDX-License-Identifier: Apache-2.0
#include "sharded/step_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sharded/placement_rules.hpp"

namespace shardcheck {
namespace {

using Kind = CollectiveStep::Kind;

bool reduces(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce_scatter; }

Placement required_by(const CollectiveStep& step) {
  switch (step.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
      return step.op == ReduceOp::sum ? Placement::partial()
                                      : Placement{Placement::Kind::P_max, Dim::features};
    case Kind::all_gather:
      return Placement::sharded(activation_dim(step.dim));
    case Kind::all_to_all:
      return Placement::sharded(activation_dim(step.concat));
    case Kind::broadcast:
    case Kind::slice:
      return Placement::replicated();
  }
  return Placement::replicated();
}

std::string sentence_of(const CollectiveStep& step) {
  switch (step.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
      return "a sum over ranks of a value that isn't partial multiplies or mixes it";
    case Kind::all_gather:
      return "a gather needs a value that is cut along that dimension";
    case Kind::all_to_all:
      return "an all_to_all needs a value that is cut along the dimension it joins";
    case Kind::broadcast:
    case Kind::slice:
      return "this step needs a value that every rank holds whole";
  }
  return "";
}

std::vector<std::string> names(const std::vector<int>& axes, const Mesh& mesh) {
  std::vector<std::string> result;
  for (const int axis : axes) result.push_back(mesh.axes[static_cast<std::size_t>(axis)].name);
  return result;
}

/// A step's effect on a layout that is placed as it needs.
Layout after(const CollectiveStep& step, const std::vector<int>& axes, Layout out, const Mesh& mesh,
             std::int64_t head_dim) {
  const Dim dim = activation_dim(step.dim);
  const bool split_rows = dim != Dim::features;
  const std::int64_t unit = step.dim == PlanDim::head || step.dim == PlanDim::kv_head ? head_dim : 1;
  const auto set_all = [&](Placement placement) {
    for (const int axis : axes) out.placements[static_cast<std::size_t>(axis)] = placement;
  };
  const auto cut_rows = [&] {
    set_all(Placement::sharded(dim));
    out.row_axes.insert(out.row_axes.end(), axes.begin(), axes.end());
  };
  const auto join_rows = [&] {
    for (const int axis : axes) std::erase(out.row_axes, axis);
    set_all(Placement::replicated());
  };
  switch (step.kind) {
    case Kind::all_reduce:
    case Kind::broadcast:
      set_all(Placement::replicated());
      return out;
    case Kind::all_gather:
      if (!split_rows) return gathered_features(std::move(out), mesh, axes);
      join_rows();
      return out;
    case Kind::reduce_scatter:
    case Kind::slice:
      set_all(Placement::replicated());
      if (!split_rows) return split_features(std::move(out), mesh, axes, unit);
      cut_rows();
      return out;
    case Kind::all_to_all:
      if (activation_dim(step.concat) != Dim::features) {
        join_rows();
      } else {
        out = gathered_features(std::move(out), mesh, axes);
      }
      if (!split_rows) return split_features(std::move(out), mesh, axes, unit);
      cut_rows();
      return out;
  }
  return out;
}

/// Axes outside the step's group on which the value is partial as the step would reduce it.
std::vector<int> other_partial_axes(const CollectiveStep& step, const std::vector<int>& axes,
                                    const Layout& in) {
  std::vector<int> found;
  for (std::size_t i = 0; reduces(step.kind) && i < in.placements.size(); ++i) {
    const auto axis = static_cast<int>(i);
    if (std::find(axes.begin(), axes.end(), axis) == axes.end() && in.placements[i] == required_by(step))
      found.push_back(axis);
  }
  return found;
}

/// An axis that cuts rows inside what `outer` left of them and stays cut when the step joins `outer`: the ranks of the
/// group don't hold the parts of one stretch then. -1: none. Sequences inside tokens are the same either way.
int inner_axis(const Layout& in, const std::vector<int>& axes, int outer) {
  const auto at = std::find(in.row_axes.begin(), in.row_axes.end(), outer);
  const auto dim = [&in](int axis) { return in.placements[static_cast<std::size_t>(axis)].dim; };
  for (auto inner = at; inner != in.row_axes.end(); ++inner) {
    if (std::find(axes.begin(), axes.end(), *inner) != axes.end()) continue;
    if (dim(*inner) == Dim::tokens || dim(outer) == Dim::sequences) return *inner;
  }
  return -1;
}

}  // namespace

StepPlaced place_step(const CollectiveStep& step, const std::vector<int>& group, const Layout& in,
                      const Mesh& mesh, std::int64_t head_dim) {
  // An axis of one rank cuts nothing: a value is whole along it, whatever the step says.
  std::vector<int> axes = group;
  std::erase_if(axes, [&](int axis) { return mesh.axes[static_cast<std::size_t>(axis)].size == 1; });
  StepPlaced placed;
  const Placement required = required_by(step);
  std::vector<int> fitting, together;
  for (const int axis : axes) {
    const Placement met = in.placements[static_cast<std::size_t>(axis)];
    const int inner = met == required && met.cuts_rows() ? inner_axis(in, axes, axis) : -1;
    if (inner >= 0) {
      together = {axis, inner};
      placed.misfits.push_back(
          {axis, required, fmt::format("{0} cuts what {1} left of the rows: join {0} first, or both in one group",
                                       mesh.axes[static_cast<std::size_t>(inner)].name,
                                       mesh.axes[static_cast<std::size_t>(axis)].name)});
    } else if (met == required) {
      fitting.push_back(axis);
    } else {
      placed.misfits.push_back({axis, required, sentence_of(step)});
    }
  }
  if (placed.misfits.empty()) {
    placed.out = after(step, axes, in, mesh, head_dim);
    return placed;
  }
  if (step.kind == Kind::all_gather && !together.empty()) {
    placed.instead = step;
    placed.instead->axes = names(together, mesh);
    placed.out = after(step, together, in, mesh, head_dim);
    return placed;
  }
  const std::vector<int> others = other_partial_axes(step, axes, in);
  if (reduces(step.kind) && !(others.empty() && fitting.empty())) {
    // The wrong axis, or one too many: what is meant is the sum over those that have one.
    std::vector<int> meant = fitting;
    meant.insert(meant.end(), others.begin(), others.end());
    std::sort(meant.begin(), meant.end());
    placed.instead = step;
    placed.instead->axes = names(meant, mesh);
    for (StepMisfit& misfit : placed.misfits) {
      const std::string& wrong = mesh.axes[static_cast<std::size_t>(misfit.axis)].name;
      misfit.sentence = fmt::format("the value is partial on {}, not on {}{}",
                                    fmt::join(names(meant, mesh), ", "), wrong,
                                    others.empty() ? "" : ": this sum leaves it partial there");
    }
    placed.out = after(step, meant, in, mesh, head_dim);
    return placed;
  }
  Layout base = in;
  for (const StepMisfit& misfit : placed.misfits)
    base = assume_replicated(std::move(base), mesh, misfit.axis);
  const Placement met = in.placements[static_cast<std::size_t>(placed.misfits[0].axis)];
  const bool one = axes.size() == 1;
  if (one && (step.kind == Kind::reduce_scatter || step.kind == Kind::slice)) {
    placed.instead = step_between(met, Placement::sharded(activation_dim(step.dim)), step.axes[0],
                                  step.dim);
  } else if (one && step.kind != Kind::all_to_all) {
    const bool gathers = step.kind == Kind::all_gather && activation_dim(step.dim) == Dim::features;
    placed.instead = step_between(met, Placement::replicated(), step.axes[0],
                                  gathers ? step.dim : PlanDim::features);
  }
  placed.out = after(step, axes, std::move(base), mesh, head_dim);
  return placed;
}

std::optional<CollectiveStep> step_between(const Placement& from, const Placement& to,
                                           const std::string& axis, PlanDim features) {
  const auto dim = [features](const Placement& placement) {
    return placement.dim == Dim::tokens      ? PlanDim::tokens
           : placement.dim == Dim::sequences ? PlanDim::sequence
                                             : features;
  };
  CollectiveStep step;
  step.axes = {axis};
  const bool to_whole = to.kind == Placement::Kind::R, to_cut = to.kind == Placement::Kind::S;
  if (from.is_partial() && to_whole) {
    step.op = from.kind == Placement::Kind::P_max ? ReduceOp::max : ReduceOp::sum;
    return step;
  }
  if (from.kind == Placement::Kind::P_sum && to_cut) {
    step.kind = Kind::reduce_scatter;
    step.dim = dim(to);
    return step;
  }
  if (from.kind == Placement::Kind::S && to_whole) {
    step.kind = Kind::all_gather;
    step.dim = dim(from);
    return step;
  }
  if (from.kind == Placement::Kind::R && to_cut) {
    step.kind = Kind::slice;
    step.dim = dim(to);
    return step;
  }
  if (from.kind == Placement::Kind::S && to_cut && from.cuts_features() != to.cuts_features()) {
    step.kind = Kind::all_to_all;
    step.dim = dim(to);
    step.concat = dim(from);
    return step;
  }
  return std::nullopt;
}

std::vector<CollectiveStep> with_step(std::vector<CollectiveStep> steps, const CollectiveStep& step,
                                      const Mesh& mesh) {
  if (steps.empty()) return {step};
  CollectiveStep& last = steps.back();
  const bool same_axes = last.axes == step.axes;
  const bool same_dim = activation_dim(last.dim) == activation_dim(step.dim);
  if (step.kind == Kind::all_gather && same_axes && same_dim && last.kind == Kind::slice) {
    steps.pop_back();
    return steps;
  }
  if (step.kind == Kind::all_gather && same_axes && same_dim && last.kind == Kind::reduce_scatter) {
    CollectiveStep whole;
    whole.op = last.op;
    whole.axes = last.axes;
    last = whole;
    return steps;
  }
  const bool scatters = last.kind == Kind::slice || last.kind == Kind::reduce_scatter;
  if (step.kind == Kind::all_to_all && same_axes && scatters &&
      activation_dim(last.dim) == activation_dim(step.concat)) {
    last.dim = step.dim;
    return steps;
  }
  if (step.kind == Kind::all_reduce && last.kind == Kind::all_reduce && last.op == step.op &&
      !same_axes) {
    last.axes.insert(last.axes.end(), step.axes.begin(), step.axes.end());
    std::sort(last.axes.begin(), last.axes.end(), [&](const std::string& a, const std::string& b) {
      return mesh.axis_index(a) < mesh.axis_index(b);
    });
    last.axes.erase(std::unique(last.axes.begin(), last.axes.end()), last.axes.end());
    return steps;
  }
  steps.push_back(step);
  return steps;
}

std::string point_entry(const std::string& point, const std::vector<CollectiveStep>& steps) {
  std::vector<std::string> words;
  for (const CollectiveStep& step : steps) words.push_back(fmt::format("\"{}\"", to_string(step)));
  const std::string value = words.size() == 1 ? words[0]
                                              : fmt::format("[{}]", fmt::join(words, ", "));
  return fmt::format("\"{}\": {}", point, value);
}

}  // namespace shardcheck
