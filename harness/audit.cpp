// SPDX-License-Identifier: Apache-2.0
#include "harness/audit.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardcheck {
namespace {

std::string describe(const ExpectedCollective& e) {
  return fmt::format("{} over {} of {} bytes ({}) at {}", e.what, e.group, e.payload_bytes,
                     name(e.dtype), e.module);
}
std::string describe(const LedgerRecord& r) {
  return fmt::format("{} over {} of {} bytes ({}) at {}", r.what, r.group, r.payload_bytes,
                     name(r.dtype), r.site);
}

/// The tap belongs to the module, its input or one of its stages.
bool belongs(std::string_view site, std::string_view module) {
  return site == module || (site.size() > module.size() &&
                            site.substr(0, module.size()) == module && site[module.size()] == '.');
}

}  // namespace

AuditResult audit(const Model& model, const ResolvedPlan& plan, const RunSettings& settings,
                  std::span<const Step> steps, const std::vector<Ledger>& ledgers,
                  const std::vector<Ledger>& meta, const OpExchanges& exchanges) {
  AuditResult result;
  const auto fail = [&](int rank, std::string site, std::string problem) {
    if (result.passed) {
      result.passed = false;
      result.site = std::move(site);
      result.problem = fmt::format("rank {}: {}", rank, problem);
    }
    result.ranks.push_back(rank);
  };
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const Ledger& ledger = ledgers[static_cast<std::size_t>(rank)];
    std::vector<const LedgerRecord*> issued;
    for (const LedgerRecord& record : ledger) {
      if (record.kind == LedgerRecord::Kind::collective) issued.push_back(&record);
    }
    std::size_t at = 0;
    bool good = true;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      for (const ExpectedCollective& e :
           closed_form(model, plan, settings, steps.first(s + 1), rank, exchanges)) {
        if (rank == 0) {
          ++result.collectives;
          result.payload_bytes += e.payload_bytes;
        }
        if (!good) continue;
        const LedgerRecord* got = at < issued.size() ? issued[at] : nullptr;
        ++at;
        if (got != nullptr && got->what == e.what && got->group == e.group && got->dtype == e.dtype &&
            got->payload_bytes == e.payload_bytes && got->own_bytes == e.own_bytes &&
            got->phase == step.phase && got->step == step.index && belongs(got->site, e.module)) {
          continue;
        }
        good = false;
        fail(rank, got != nullptr ? got->site : e.module,
             fmt::format(
                 "{} step {}: the plan asks for {}, but {}", name(step.phase), step.index, describe(e),
                 got == nullptr ? "nothing more was issued" : "the rank issued " + describe(*got)));
      }
    }
    if (good && at < issued.size()) {
      good = false;
      fail(rank, issued[at]->site,
           "the rank issued a collective that the plan doesn't ask for: " + describe(*issued[at]));
    }
    const Ledger& shapes = meta[static_cast<std::size_t>(rank)];
    const auto [mine, theirs] = std::mismatch(ledger.begin(), ledger.end(), shapes.begin(),
                                              shapes.end());
    if (good && (mine != ledger.end() || theirs != shapes.end())) {
      const LedgerRecord& record = mine != ledger.end() ? *mine : *theirs;
      fail(rank, record.site,
           fmt::format("record {} ({} at {}) differs between the device and meta",
                       mine - ledger.begin(), record.what, record.site));
    }
  }
  return result;
}

}  // namespace shardcheck
