// SPDX-License-Identifier: Apache-2.0
// Gate `audit`: the collectives that ran, against the closed form of the plan.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

/// Asks what an op that a plan names sends and receives by itself, in the last of `steps`.
struct ExchangeQuery {
  const Model& model;
  const ResolvedPlan& plan;
  const RunSettings& settings;
  std::span<const Step> steps;  // up to the one that is asked about
  std::string value;            // that the op computes: "layers.0.self_attn.attn"
  int rank = 0;
};
/// By op, the closed form of its messages, in the order that a rank issues them, from plan and config alone. An op
/// without one sends nothing.
using OpExchanges =
    std::map<std::string, std::function<std::vector<ExpectedCollective>(const ExchangeQuery&)>, std::less<>>;

/// The collectives of one rank for the last of `steps`, in order, from plan and config alone (never from the Program):
/// for megatron, two all_reduces of tokens x hidden x wire bytes per layer, one for the embedding, one gather of the
/// logits.
std::vector<ExpectedCollective> closed_form(const Model& model, const ResolvedPlan& plan,
                                            const RunSettings& settings, std::span<const Step> steps,
                                            int rank, const OpExchanges& exchanges = {});

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
                  const std::vector<Ledger>& meta, const OpExchanges& exchanges = {});

}  // namespace shardcheck
