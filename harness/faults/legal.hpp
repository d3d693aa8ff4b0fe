// SPDX-License-Identifier: Apache-2.0
// Legal variations of a correct run: other orders and roundings of sums, uneven cuts, chunked prompts, several sequences,
// blocks of products, other seeds. None may raise an alarm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/verify.hpp"

namespace shardcheck {

struct LegalRuns {
  std::int64_t runs = 0;            // cells of verify and prove, and programs that lint saw
  std::vector<std::string> alarms;  // a sentence each
};

/// Every variation of a model under a plan on these meshes.
LegalRuns legal_runs(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes,
                     const VerifyParts& parts);

/// Cuts of a plan on one mesh that are as uneven as they can be: dimensions that ranks share by rows in equal parts get
/// unequal ones, with what must follow them. Weights that go with heads keep their cuts.
void cut_unevenly(ResolvedPlan& plan, const std::vector<Module>& modules);

/// Linears whose products are summed in blocks of columns, in the accumulate dtype, and rounded once.
std::unique_ptr<Interposer> make_blocked_products(std::int64_t columns);

}  // namespace shardcheck
