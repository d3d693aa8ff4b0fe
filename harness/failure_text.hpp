// SPDX-License-Identifier: Apache-2.0
// Private to the reports: a failure's cause and its way through the values, in lines for people.
#pragma once

#include <string>

#include "harness/verify.hpp"

namespace shardcheck {

/// "rank 1", "ranks 0, 2" or "all ranks"; no ranks: "the sum".
std::string ranks_text(const std::vector<int>& ranks, bool all);
/// Lines "  cause ...", "  evidence ..." and "  values ...", those that there is something to say about.
std::string cause_lines(const FirstFailure& first, const Mesh& mesh);

}  // namespace shardcheck
