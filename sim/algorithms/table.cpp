// SPDX-License-Identifier: Apache-2.0
#include "sim/algorithm.hpp"

namespace shardcheck::sim {

std::vector<Algorithm> builtin_algorithms() {
  return {ring(), one_shot(), two_shot(), nvls(), pairwise()};
}

std::vector<std::string_view> AlphaBetaModel::algorithms(CollectiveKind kind) const {
  std::vector<std::string_view> names;
  for (const Algorithm& algorithm : algorithms_) {
    if (algorithm.has(kind)) names.push_back(algorithm.name);
  }
  return names;
}

std::vector<Constant> AlphaBetaModel::constants() const {
  std::vector<Constant> all;
  for (const Algorithm& algorithm : algorithms_) {
    for (Constant& constant : algorithm.constants()) all.push_back(std::move(constant));
  }
  return all;
}

std::vector<CollectiveCost> AlphaBetaModel::predict(const CollectiveCall& call, const Link& link) const {
  std::vector<CollectiveCost> costs;
  for (const Algorithm& algorithm : algorithms_) {
    if (algorithm.has(call.kind) && algorithm.runs_on(link)) {
      costs.push_back({algorithm.name, algorithm.terms(call, link)});
    }
  }
  return costs;
}

}  // namespace shardcheck::sim
