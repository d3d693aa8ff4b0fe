// SPDX-License-Identifier: Apache-2.0
#include "harness/failure_text.hpp"

#include <fmt/format.h>

namespace shardcheck {
namespace {

std::string one_clause_a_line(std::string text) {
  const std::string end = "; ";
  for (std::size_t at = text.find(end); at != std::string::npos; at = text.find(end, at + 1))
    text.replace(at, end.size(), ";\n                   ");
  return text;
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks, bool all) {
  if (ranks.empty()) return "the ranks together";
  if (all) return "all ranks";
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string cause_lines(const FirstFailure& first, const Mesh& mesh) {
  std::string out;
  if (!first.cause.empty()) {
    const std::string name = first.cause_name.empty() ? "" : first.cause_name + ": ";
    out += fmt::format("  cause            {}{}\n", name, one_clause_a_line(first.cause));
  }
  if (first.residual && first.cause_name != "unexplained") {
    const Residual& r = *first.residual;
    out += fmt::format(
        "  evidence         with that taken away A {:.3g} of {:g}, B {:.3g} of {:g}, C {:.3g} of "
        "{:g} are left",
        r.a, r.limits.a, r.b, r.limits.b, r.c, r.limits.c);
    out += first.also.empty()
               ? "\n"
               : fmt::format("; {} would fit as well\n", fmt::join(first.also, ", "));
  }
  if (first.propagated) {
    const Propagated& p = *first.propagated;
    const bool all = static_cast<int>(p.ranks.size()) == mesh.ranks();
    out += fmt::format("  values           leave the reference at {} ({}), {} step {}", p.tap,
                       ranks_text(p.ranks, all), name(p.phase), p.step);
    // The whole value may be right, and only some ranks' copies of it are not.
    if (p.error > p.limit) out += fmt::format(": off by {:.3g}, limit {:.3g}", p.error, p.limit);
    out += "\n";
  }
  return out;
}

}  // namespace shardcheck
