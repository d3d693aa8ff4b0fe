// SPDX-License-Identifier: Apache-2.0
// Private to the reports: parts that several schemas have. Included by .cpp files only.
#pragma once

#include <nlohmann/json.hpp>

#include "harness/verify.hpp"

namespace shardcheck {

/// Numbers that JSON can't hold are words: a reader must not mistake a missing number for a good one.
nlohmann::ordered_json json_number(double value);
/// Axis name -> size, in the order of the mesh.
nlohmann::ordered_json mesh_json(const Mesh& mesh);
/// "findings" of verify and prove: {rule, op, tap, axis, met, required, fix, sentence} each.
nlohmann::ordered_json findings_json(const std::vector<Finding>& findings);
/// "first" of verify and compare: {gate, tap, phase, step, ranks, index, local_index, got, expected, cause_name, cause,
/// residual, also, propagated}.
nlohmann::ordered_json first_failure_json(const FirstFailure& first);

}  // namespace shardcheck
