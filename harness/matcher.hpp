// SPDX-License-Identifier: Apache-2.0
// A GoogleTest matcher that prints what the command would: EXPECT_THAT(verify(model, plan, options, parts), passes()).
// It needs no header of GoogleTest, so whoever doesn't test with it needs none either.
#pragma once

#include <ostream>
#include <string>

#include "harness/candidate.hpp"
#include "harness/lint.hpp"
#include "harness/prove.hpp"
#include "harness/verify.hpp"

namespace shardcheck {

/// How GoogleTest names a report; what is in it is the matcher's explanation.
inline void PrintTo(const VerifyReport& report, std::ostream* out) {
  *out << "verify of " << report.model << " under " << report.plan;
}
inline void PrintTo(const CandidateReport& report, std::ostream* out) {
  *out << "candidate on " << to_string(report.mesh);
}
inline void PrintTo(const LintReport& report, std::ostream* out) {
  *out << "lint of " << report.model << " under " << report.plan;
}
inline void PrintTo(const ProveReport& report, std::ostream* out) {
  *out << "prove of " << report.model << " under " << report.plan;
}

/// Matches a report all of whose checks passed. A report without a cell has checked nothing and doesn't match.
class PassesMatcher {
 public:
  using is_gtest_matcher = void;

  bool MatchAndExplain(const VerifyReport& report, std::ostream* out) const {
    if (out != nullptr) *out << "\n" << explained(report, verify_table(report, false));
    return report.passed() && report.ran && !report.cells.empty() &&
           report.count(Verdict::passed) == report.cells.size();
  }
  bool MatchAndExplain(const CandidateReport& report, std::ostream* out) const {
    if (out != nullptr) *out << "\n" << candidate_table(report);
    return report.passed();
  }
  bool MatchAndExplain(const LintReport& report, std::ostream* out) const {
    if (out != nullptr) *out << "\n" << lint_text(report);
    return report.passed() && !report.meshes.empty();
  }
  bool MatchAndExplain(const ProveReport& report, std::ostream* out) const {
    if (out != nullptr) *out << "\n" << explained(report, prove_text(report));
    return report.passed() && !report.cells.empty();
  }
  void DescribeTo(std::ostream* out) const { *out << "passes every check"; }
  void DescribeNegationTo(std::ostream* out) const { *out << "fails a check"; }

 private:
  /// The rules that the plan breaks, and the report's table unless they kept it from running.
  template <typename Report>
  static std::string explained(const Report& report, const std::string& table) {
    const std::string rules = report.findings.empty() ? "" : findings_text(report.findings, report.plan) + "\n";
    return report.ran ? rules + table : rules + "The plan is not legal.\n";
  }
};

inline PassesMatcher passes() { return {}; }

}  // namespace shardcheck
