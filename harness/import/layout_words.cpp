// SPDX-License-Identifier: Apache-2.0
#include "harness/import/layout_words.hpp"

namespace shardcheck {
namespace {

using Where = ImportedLayout;

bool is_cut(Where layout) {
  return layout == Where::tokens || layout == Where::sequence || layout == Where::features;
}

PlanDim dim_of(Where layout, PlanDim features) {
  return layout == Where::tokens     ? PlanDim::tokens
         : layout == Where::sequence ? PlanDim::sequence
                                     : features;
}

}  // namespace

std::string_view describe(ImportedLayout layout) {
  switch (layout) {
    case Where::any:
      return "as it comes";
    case Where::replicated:
      return "whole on every rank";
    case Where::tokens:
      return "cut along tokens";
    case Where::sequence:
      return "cut by sequence";
    case Where::features:
      return "cut along features";
    case Where::partial:
      return "partial sums";
  }
  return "?";
}

std::optional<std::vector<CollectiveStep>> steps_between(ImportedLayout from, ImportedLayout to,
                                                         PlanDim features, const std::string& axis) {
  using Kind = CollectiveStep::Kind;
  if (from == to || from == Where::any || to == Where::any) return std::vector<CollectiveStep>{};
  CollectiveStep step;
  step.axes = {axis};
  if (from == Where::partial && to == Where::replicated) {
    step.kind = Kind::all_reduce;
  } else if (from == Where::partial && is_cut(to)) {
    step.kind = Kind::reduce_scatter;
    step.dim = dim_of(to, features);
  } else if (is_cut(from) && to == Where::replicated) {
    step.kind = Kind::all_gather;
    step.dim = dim_of(from, features);
  } else if (from == Where::replicated && is_cut(to)) {
    step.kind = Kind::slice;
    step.dim = dim_of(to, features);
  } else if (is_cut(from) && is_cut(to) && (from == Where::features || to == Where::features)) {
    step.kind = Kind::all_to_all;
    step.dim = dim_of(to, features);
    step.concat = dim_of(from, features);
  } else {
    return std::nullopt;
  }
  return std::vector<CollectiveStep>{step};
}

}  // namespace shardcheck
