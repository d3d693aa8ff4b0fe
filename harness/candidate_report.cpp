// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/candidate.hpp"
#include "harness/failure_text.hpp"
#include "harness/report_json.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

/// How close a row is to its limit; NaN and a limit of 0 that is passed come first.
double closeness(const CandidateRow& row) {
  if (!row.passed())
    return std::isnan(row.rel_fro) || row.limit == 0.0 ? HUGE_VAL
                                                       : std::max(2.0, row.rel_fro / row.limit);
  return row.rel_fro == 0.0 ? 0.0 : row.rel_fro / row.limit;
}

const CandidateRow* worst_row(const CandidateReport& report) {
  const CandidateRow* worst = nullptr;
  for (const CandidateRow& row : report.rows) {
    if (worst == nullptr || closeness(row) > closeness(*worst)) worst = &row;
  }
  return worst;
}

const TapScore* worst_score(const CandidateReport& report) {
  const TapScore* worst = nullptr;
  for (const TapScore& score : report.scores) {
    if (worst == nullptr || score.margin() < worst->margin()) worst = &score;
  }
  return worst;
}

}  // namespace

std::string candidate_table(const CandidateReport& report) {
  // One line per tap: the step where it is closest to its limit.
  std::map<std::string, const CandidateRow*> by_tap;
  std::vector<std::string> order;
  std::size_t width = 3;
  for (const CandidateRow& row : report.rows) {
    const CandidateRow*& slot = by_tap[row.tap];
    if (slot == nullptr) order.push_back(row.tap);
    if (slot == nullptr || closeness(row) > closeness(*slot)) slot = &row;
    width = std::max(width, row.tap.size());
  }
  std::string out = fmt::format("candidate on {}\n{:<{}}  {:<10} {:>10} {:>10}  verdict\n",
                                to_string(report.mesh), "tap", width, "step", "error", "limit");
  for (const std::string& tap : order) {
    const CandidateRow& row = *by_tap.at(tap);
    const std::string step = fmt::format("{} {}", name(row.phase), row.step);
    out += fmt::format("{:<{}}  {:<10} {:>10.2e} {:>10.2e}  {}\n", tap, width, step, row.rel_fro,
                       row.limit,
                       row.passed()          ? "ok"
                       : row.problem.empty() ? "FAIL"
                                             : "FAIL: " + row.problem);
  }
  if (const TapScore* worst = worst_score(report)) {
    out += fmt::format(
        "\n{} taps judged from their own inputs (G3); smallest margin {:.3g} at {} of rank {}: A "
        "{:.3g} of {:g}, "
        "B {:.3g} of {:g}, C {:.3g} of {:g}\n",
        report.scores.size(), worst->margin(), worst->tap, worst->rank, worst->a, worst->limits.a,
        worst->b, worst->limits.b, worst->c, worst->limits.c);
  }
  if (report.first) {
    const FirstFailure& first = *report.first;
    const std::string ranks = first.all_ranks
                                  ? "all ranks"
                                  : fmt::format("rank {}", fmt::join(first.ranks, ", "));
    out += fmt::format("first wrong tap: {} ({}), {} step {}, gate {}\n", first.tap, ranks,
                       name(first.phase), first.step, name(first.gate));
    if (first.row >= 0) {
      out += fmt::format(
          "  token row {}, feature {} (in the rank's part: {}, {}): got {:.9g}, expected {:.9g}\n",
          first.row, first.feature, first.local_row, first.local_feature, first.got, first.expected);
    }
    out += cause_lines(first, report.mesh);
  }
  for (const std::string& sentence : report.mistrust) out += "mistrusted: " + sentence + "\n";
  if (report.unknown > 0)
    out += fmt::format("{} tensors are no tap of the model and were not compared\n", report.unknown);
  const auto failed = std::count_if(report.rows.begin(), report.rows.end(),
                                    [](const CandidateRow& r) { return !r.passed(); });
  const auto failed_scores = std::count_if(report.scores.begin(), report.scores.end(),
                                           [](const TapScore& s) { return !s.passed(); });
  return out + fmt::format(
                   "{}: {} values compared, {} outside their limit; {} local checks, {} outside\n",
                   report.passed() ? "passed" : "failed", report.compared, failed,
                   report.scores.size(), failed_scores);
}

std::string candidate_json(const CandidateReport& report) {
  Json json;
  json["schema"] = "shardcheck.compare/1";
  json["compared"] = report.compared;
  json["unknown"] = report.unknown;
  if (const CandidateRow* worst = worst_row(report)) {
    json["worst"] = {{"phase", worst->phase == Phase::prefill ? std::string("prefill")
                                                              : fmt::format("decode{}", worst->step)},
                     {"tap", worst->tap},
                     {"rel", json_number(worst->rel_fro)},
                     {"limit", json_number(worst->limit)}};
  } else {
    json["worst"] = nullptr;
  }
  if (const TapScore* worst = worst_score(report)) {
    json["worst_local"] = {
        {"tap", worst->tap},
        {"rank", worst->rank},
        {"A", json_number(worst->a)},
        {"B", json_number(worst->b)},
        {"C", json_number(worst->c)},
        {"limits", {{"A", worst->limits.a}, {"B", worst->limits.b}, {"C", worst->limits.c}}}};
  } else {
    json["worst_local"] = nullptr;
  }
  json["first"] = report.first ? first_failure_json(*report.first) : Json(nullptr);
  json["mistrusted"] = report.mistrust;
  json["verdict"] = report.passed() ? "passed" : report.first ? "failed" : "mistrusted";
  return json.dump(1) + "\n";
}

}  // namespace shardcheck
