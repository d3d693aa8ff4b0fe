// SPDX-License-Identifier: Apache-2.0
// Gate `audit`: the collectives that ran, against the closed form of the plan.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sharded/ledger.hpp"
#include "sharded/plan.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck {

/// One collective that the plan asks for.
struct ExpectedCollective {
  std::string module;  // whose point it stands at
  std::string what, group;
  DType dtype = DType::f32;
  std::int64_t payload_bytes = 0;
  std::int64_t own_bytes = 0;
};

/// The collectives of one rank for one step, in order, from plan and config alone (never from the Program): for
/// megatron, two all_reduces of tokens x hidden x wire bytes per layer, one for the embedding, one gather of the logits.
std::vector<ExpectedCollective> closed_form(const Model& model, const ResolvedPlan& plan,
                                            const RunSettings& settings, const Step& step, int rank);

struct AuditResult {
  bool passed = true;
  std::string problem;  // the first difference: rank, place, expected, got
  std::string site;     // tap of the first difference
  std::vector<int> ranks;
  std::int64_t collectives = 0;    // of rank 0, all steps
  std::int64_t payload_bytes = 0;  // of rank 0, all steps
};

/// Compares every rank's ledger with the closed form, and with the ledger of the same program on the meta device,
/// record for record.
AuditResult audit(const Model& model, const ResolvedPlan& plan, const RunSettings& settings,
                  std::span<const Step> steps, const std::vector<Ledger>& ledgers,
                  const std::vector<Ledger>& meta);

}  // namespace shardcheck
