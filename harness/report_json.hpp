// SPDX-License-Identifier: Apache-2.0
// Private to the reports: parts that several schemas have. Included by .cpp files only.
#pragma once

#include <nlohmann/json.hpp>

#include "harness/verify.hpp"

namespace shardcheck {

/// Numbers that JSON can't hold are words: a reader must not mistake a missing number for a good one.
nlohmann::ordered_json json_number(double value);
/// "first" of verify and compare: {gate, tap, phase, step, ranks, index, local_index, got, expected, cause_name, cause,
/// residual, also, propagated}.
nlohmann::ordered_json first_failure_json(const FirstFailure& first);

}  // namespace shardcheck
