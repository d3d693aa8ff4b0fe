// SPDX-License-Identifier: Apache-2.0
// One value of a sharded run against the unsharded program's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/proof/counterparts.hpp"
#include "harness/run.hpp"
#include "sharded/weights.hpp"

namespace shardcheck {

/// Where two runs first differ.
struct RunDifference {
  std::size_t step = 0;  // of the run
  int value = -1;        // of the sharded program; -1: the run ended at `tap`
  std::string tap;
  std::vector<int> ranks;               // in this step or a later one
  std::int64_t row = -1, feature = -1;  // of the first rank's first differing element, in the whole value
  std::string problem;                  // a sentence where it isn't an element; else empty
};

/// The unsharded value that a value of the sharded program stands for, in one step.   [rows, features]
HostTensor expected_value(const Counterpart& counterpart, const StepTaps& whole, WeightStore& weights);

/// What all ranks hold of a value in the last of `steps`, of DType::field (bit for bit; poison is equal to nothing)
/// or f64 (within G2's limit of the largest number there is). `expected` null: the unsharded program has no such
/// value, and replicas are compared with the first of them. `step` and `value` of the difference are left to the
/// caller.
std::optional<RunDifference> compare_value(const Value& value, const std::vector<HostTensor>& parts,
                                           const Mesh& mesh, std::span<const Step* const> steps,
                                           const HostTensor* expected);

/// The same for two dense tensors; other shapes are different.
bool same_numbers(const HostTensor& a, const HostTensor& b);

/// Rows and columns of a matrix, in the order of the ranges, dense.
HostTensor part_of(const HostTensor& whole, const Ranges& rows, const Ranges& cols);

}  // namespace shardcheck
