// SPDX-License-Identifier: Apache-2.0
#include "harness/judge_collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace shardcheck {
namespace {

// A collective moves a value and never changes it, so what it must give follows from where its input is, not from what
// it does: a sum of values that are whole already is wrong at its own output.
bool input_is(const Work& work, const TapReader& input, bool (*placed)(const Placement&)) {
  return std::any_of(work.instruction->axes.begin(), work.instruction->axes.end(), [&](int axis) {
    return placed(input.layout().placements[static_cast<std::size_t>(axis)]);
  });
}
bool is_partial(const Placement& placement) { return placement.is_partial(); }
bool is_sharded(const Placement& placement) { return placement.kind == Placement::Kind::S; }
bool is_maximum(const Placement& placement) { return placement.kind == Placement::Kind::P_max; }

LocalValue reduced(const Work& work, const TapReader& input, const std::vector<int>& members,
                   DType out) {
  LocalValue value;
  value.y = input.assemble({members.front()});
  const std::int64_t n = value.y.rows() * value.y.cols();
  double* const y = value.y.data();
  if (input_is(work, input, is_maximum)) {
    for (std::size_t i = 1; i < members.size(); ++i) {
      const F64Matrix term = input.assemble({members[i]});
      for (std::int64_t k = 0; k < n; ++k) y[k] = term.data()[k] > y[k] ? term.data()[k] : y[k];
    }
    return value;
  }
  value.budget = F64Matrix(value.y.rows(), value.y.cols());
  double* const b = value.budget.data();
  for (std::int64_t k = 0; k < n; ++k) b[k] = y[k] * y[k];
  for (std::size_t i = 1; i < members.size(); ++i) {
    const F64Matrix term = input.assemble({members[i]});
    for (std::int64_t k = 0; k < n; ++k) {
      y[k] += term.data()[k];
      b[k] += term.data()[k] * term.data()[k];
    }
  }
  const ReductionBudget unit = reduction_budget(
      work.run->reduction, static_cast<int>(members.size()), input.dtype(), out);
  for (std::int64_t k = 0; k < n; ++k) {
    b[k] = unit.per_result * std::abs(y[k]) + unit.per_terms * std::sqrt(b[k]) + unit.constant;
  }
  return value;
}

}  // namespace

bool collective_sums(const Work& work, const TapReader& input) { return input_is(work, input, is_partial); }
bool collective_takes_maximum(const Work& work, const TapReader& input) {
  return input_is(work, input, is_maximum);
}

std::vector<int> collective_sources(const Work& work, const TapReader& input, int rank) {
  const std::vector<int> group = work.run->mesh.group(rank, work.instruction->axes);
  if (input_is(work, input, is_partial) || input_is(work, input, is_sharded)) return group;
  const auto root = static_cast<std::size_t>(work.instruction->collective.root);
  const bool broadcast = work.instruction->collective.kind == CollectiveStep::Kind::broadcast;
  return {broadcast && root < group.size() ? group[root] : rank};
}

LocalValue moved_value(const TapReader& input, const std::vector<int>& owners, DType out) {
  LocalValue value;
  value.y = input.assemble(owners);
  if (represents(out, input.dtype())) return value;
  value.budget = F64Matrix(value.y.rows(), value.y.cols());
  for (std::int64_t k = 0; k < value.y.rows() * value.y.cols(); ++k) {
    value.budget.data()[k] = unit_roundoff(out) * std::abs(value.y.data()[k]) + half_min_subnormal(out);
  }
  return value;
}

ReductionBudget reduction_budget(const ReduceSpec& spec, int terms, DType wire, DType out) {
  ReductionBudget budget;
  const bool every_hop = rounds_every_hop(spec);
  budget.per_result = unit_roundoff(out);
  if (out != wire && !every_hop)
    budget.per_result += unit_roundoff(wire);  // the sum's one rounding to the wire dtype
  // NCCL's tree on one node is a chain (kernels/reduction.hpp): only fixed_tree has logarithmic height.
  const bool tree = spec.order == ReduceOrder::fixed_tree;
  const auto p = static_cast<unsigned>(std::max(terms, 1));
  const double hops = tree ? 1.0 + static_cast<double>(std::bit_width(p - 1))
                           : static_cast<double>(p - 1);
  const double u_hop = unit_roundoff(every_hop ? wire : accumulate_dtype(wire));
  budget.per_terms = u_hop * std::sqrt(hops);
  budget.constant = static_cast<double>(p) * half_min_subnormal(wire) + half_min_subnormal(out);
  return budget;
}

std::vector<TapScore> judge_collective(const Work& work, bool taps_may_be_missing) {
  OutputSet outputs(work, taps_may_be_missing);
  if (outputs.empty()) return outputs.scores();
  const TapReader input(*work.run, work.steps, work.program->value(work.instruction->inputs[0]));
  if (!input.present()) {
    if (taps_may_be_missing) return {};
    outputs.fail_all(fmt::format("its input {} is missing", input.name()), false);
    return outputs.scores();
  }
  struct Readers {
    std::vector<int> sources, ranks;
  };
  std::map<std::vector<const void*>, Readers> readers;
  for (int rank = 0; rank < work.run->mesh.ranks(); ++rank) {
    std::vector<int> from = collective_sources(work, input, rank);
    std::string defect;
    for (const int peer : from) {
      if (defect.empty()) defect = input.defect(peer);
    }
    if (!defect.empty()) {
      outputs.fail(rank, fmt::format("its input {} {}", input.name(), defect));
      continue;
    }
    Readers& known = readers[input.key(from)];
    known.sources = from;
    known.ranks.push_back(rank);
  }
  for (const auto& [key, reader] : readers) {
    const bool sums = collective_sums(work, input);
    std::vector<Comparison> comparisons = outputs.comparisons(0, reader.ranks, !sums);
    if (comparisons.empty()) continue;
    const DType out = comparisons.front().dtype();
    compare_all(sums ? reduced(work, input, reader.sources, out) : moved_value(input, reader.sources, out),
                comparisons);
    outputs.take(comparisons);
  }
  return outputs.scores();
}

}  // namespace shardcheck
