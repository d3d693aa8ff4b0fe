// SPDX-License-Identifier: Apache-2.0
#include "sim/collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace shardcheck::sim {

Bytes CollectiveCall::part() const {
  const Bytes balanced = payload / static_cast<double>(std::max(ranks, 1));
  return kind == CollectiveKind::all_gather ? std::max(balanced, largest_part) : balanced;
}

double traffic_factor(CollectiveKind kind, int ranks, bool switch_reduces) {
  if (ranks <= 1) return 0.0;
  const double p = ranks;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return switch_reduces ? 1.0 : 2.0 * (p - 1.0) / p;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      return (p - 1.0) / p;
    case CollectiveKind::broadcast:
    case CollectiveKind::send:
    case CollectiveKind::recv:
      return 1.0;
  }
  return 0.0;
}

Bytes least_traffic(const CollectiveCall& call, const Link& link) {
  return call.payload * traffic_factor(call.kind, call.ranks, link.switch_reduces);
}

Seconds bandwidth_bound(const CollectiveCall& call, const Link& link) {
  return least_traffic(call, link) / link.bandwidth.value;
}

Seconds CollectiveCost::total() const {
  Seconds sum;
  for (const Term& term : terms) sum += term.time;
  return sum;
}

std::vector<CollectiveCost> CollectiveModel::costs(const CollectiveCall& call, const Link& link) const {
  if (call.ranks <= 1) return {};
  // A prediction without latency on a link without loss equals the bound in exact arithmetic; a product, a quotient
  // and a sum of a few terms may each lose half an ulp.
  constexpr double rounding = 16.0 * std::numeric_limits<double>::epsilon();
  const Seconds bound = bandwidth_bound(call, link);
  std::vector<CollectiveCost> result = predict(call, link);
  for (const CollectiveCost& cost : result) {
    for (const Term& term : cost.terms) {
      if (!(term.time >= Seconds(0.0))) {
        throw std::logic_error(fmt::format("{} {} on {}: the term {} is {} s", cost.algorithm,
                                           name(call.kind), link.name, term.name, term.time.value));
      }
    }
    if (!(cost.total() >= bound * (1.0 - rounding))) {
      throw std::logic_error(
          fmt::format("{} {} of {} bytes among {} GPUs on {}: predicted {} s, below the bandwidth "
                      "bound of {} s",
                      cost.algorithm, name(call.kind), call.payload.value, call.ranks, link.name,
                      cost.total().value, bound.value));
    }
  }
  return result;
}

const CollectiveCost& cheapest(std::span<const CollectiveCost> costs) {
  return *std::min_element(
      costs.begin(), costs.end(),
      [](const CollectiveCost& a, const CollectiveCost& b) { return a.total() < b.total(); });
}

}  // namespace shardcheck::sim
