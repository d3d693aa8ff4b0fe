// SPDX-License-Identifier: Apache-2.0
// Loaders that give ranks other ranges of a weight than the plan says.
#pragma once

#include <map>
#include <optional>

#include "harness/faults/anatomy.hpp"

namespace shardcheck::faults {

/// What a rank loads in place of its own ranges of one tensor.
struct OtherSlice {
  Ranges rows, cols;
};

/// Ranks load these slices of a module's weight, or of its bias. Nothing where no slice is another than the rank's own
/// or one hasn't the shape of it: then a loader would stop.
std::optional<Planted> wrong_slices(const Program& program, const Spot& spot, bool bias,
                                    const std::map<int, OtherSlice>& slices);
/// Rows (columns) alone.
std::optional<Planted> wrong_rows(const Program& program, const Spot& spot, bool bias,
                                  const std::map<int, Ranges>& rows);
std::optional<Planted> wrong_cols(const Program& program, const Spot& spot,
                                  const std::map<int, Ranges>& cols);

/// Row parts of a fused weight that a rank holds, section by section, in whole rows.
std::vector<Ranges> by_section(const Module& module, const Ranges& held);

/// Modules of which ranks hold some columns.
std::vector<std::string> column_cut_modules(const Program& program, Phase phase);

}  // namespace shardcheck::faults
