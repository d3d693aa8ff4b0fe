// SPDX-License-Identifier: Apache-2.0
#include "harness/diagnose/diagnose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "harness/diagnose/hypothesis.hpp"

namespace shardcheck {
namespace {

std::size_t order_of(std::string_view cause) {
  return static_cast<std::size_t>(find_cause(cause) - std::begin(kCauses));
}

double size_of(const Residual& residual) {
  return std::max({residual.a / residual.limits.a, residual.b / residual.limits.b,
                   residual.c / residual.limits.c});
}

/// Ranks whose parts are the same bytes made from the same inputs are one case.
std::vector<std::vector<int>> same_cases(const FailedOp& op, const std::vector<int>& ranks) {
  std::map<std::vector<const void*>, std::vector<int>> found;
  std::vector<std::vector<int>> separate;
  for (const int rank : ranks) {
    const TapReader& output = op.output();
    const bool whole = output.layout().owned.empty() && output.defect(rank).empty() &&
                       !output.layout().any_partial();
    if (whole) {
      found[output.key({rank})].push_back(rank);
    } else {
      separate.push_back({rank});
    }
  }
  for (auto& [key, group] : found) separate.push_back(std::move(group));
  std::sort(separate.begin(), separate.end());
  return separate;
}

struct RankFindings {
  std::vector<int> ranks;
  std::vector<Explanation> explanations;
  std::string problem, where;
  std::optional<Residual> plain;
};

RankFindings examine(const FailedOp& op, const std::vector<int>& ranks) {
  RankFindings findings;
  findings.ranks = ranks;
  const RankCase rank(op, ranks.front());
  findings.problem = rank.problem();
  if (!findings.problem.empty()) return findings;
  findings.where = rank.where();
  findings.plain = rank.residual();
  Explanations found(rank);
  for (const HypothesisFamily family : kFamilies) {
    family(rank, found);
    if (found.has("never_written") || found.has("not_finite")) break;
  }
  findings.explanations = found.all();
  std::stable_sort(findings.explanations.begin(), findings.explanations.end(),
                   [](const Explanation& a, const Explanation& b) {
                     return order_of(a.cause) < order_of(b.cause);
                   });
  return findings;
}

const Explanation* explanation_of(const RankFindings& findings, std::string_view cause) {
  for (const Explanation& e : findings.explanations) {
    if (e.cause == cause) return &e;
  }
  return nullptr;
}

Diagnosis unexplained(const std::vector<RankFindings>& all) {
  Diagnosis diagnosis;
  diagnosis.name = "unexplained";
  const RankFindings& first = all.front();
  diagnosis.sentence = fmt::format("{} ({} on rank {})", find_cause("unexplained")->sentence,
                                   first.where, first.ranks.front());
  diagnosis.residual = first.plain;
  return diagnosis;
}

/// The simplest cause that explains every rank; where none does, the simplest of the lowest rank.
Diagnosis choose(const std::vector<RankFindings>& all) {
  const RankFindings& lowest = all.front();
  std::vector<std::string_view> common, own;
  for (const Explanation& e : lowest.explanations) {
    own.push_back(e.cause);
    const bool everywhere = std::all_of(all.begin(), all.end(), [&](const RankFindings& f) {
      return explanation_of(f, e.cause) != nullptr;
    });
    if (everywhere) common.push_back(e.cause);
  }
  const std::vector<std::string_view>& causes = common.empty() ? own : common;
  if (causes.empty()) return unexplained(all);
  Diagnosis diagnosis;
  diagnosis.name = causes.front();
  diagnosis.sentence = std::string(find_cause(causes.front())->sentence);
  std::size_t shown = 0;
  for (const RankFindings& findings : all) {
    const Explanation* const e = explanation_of(findings, causes.front());
    if (e == nullptr) {
      diagnosis.sentence += fmt::format("; rank {} has another error", findings.ranks.front());
      continue;
    }
    if (shown++ < 2)
      diagnosis.sentence += fmt::format("{} {}", shown == 1 ? ":" : ";", e->sentence);
    if (e->residual && (!diagnosis.residual || size_of(*e->residual) > size_of(*diagnosis.residual)))
      diagnosis.residual = e->residual;
  }
  for (std::size_t i = 1; i < causes.size(); ++i) diagnosis.also.emplace_back(causes[i]);
  return diagnosis;
}

}  // namespace

bool Explanations::test(std::string_view cause, const LocalValue& hypothesis, std::string sentence) {
  if (has(cause)) return false;
  const std::optional<Residual> residual = case_.fit(hypothesis);
  if (!residual) return false;
  found_.push_back({cause, std::move(sentence), residual});
  return true;
}

void Explanations::add(std::string_view cause, std::string sentence) {
  if (!has(cause)) found_.push_back({cause, std::move(sentence), std::nullopt});
}

bool Explanations::has(std::string_view cause) const {
  return std::any_of(found_.begin(), found_.end(),
                     [&](const Explanation& e) { return e.cause == cause; });
}

Diagnosis diagnose(const Model& model, const Failure& failure, const DiagnoseOptions& options) {
  const FailedOp op(model, failure, options);
  if (!op.found()) {
    return {"unexplained", fmt::format("no op of the program makes {}", failure.tap), std::nullopt, {}};
  }
  std::vector<int> ranks = failure.ranks;
  if (ranks.empty()) {
    for (int rank = 0; rank < op.ranks(); ++rank) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<RankFindings> all;
  for (const std::vector<int>& group : same_cases(op, ranks)) {
    all.push_back(examine(op, group));
    if (all.back().problem.empty()) continue;
    const bool own = all.back().problem.starts_with(failure.tap);
    if (all.size() == 1)
      return {own ? "shape_differs" : "unexplained", all.back().problem, std::nullopt, {}};
    all.pop_back();
  }
  return choose(all);
}

}  // namespace shardcheck
