// SPDX-License-Identifier: Apache-2.0
// Changed copies of tensors, for faults. All but `changed` use a device's own primitives, so that they work over the prime
// field too.
#pragma once

#include <functional>
#include <span>

#include "harness/faults/fault.hpp"

namespace shardcheck::faults {

/// A dense copy in new memory.
Tensor copy_of(RankContext& context, const Tensor& tensor);
/// As many zeros.
Tensor zeros_like(RankContext& context, const Tensor& tensor);
/// a + b, and `times` doublings of a tensor.
Tensor sum_of(RankContext& context, const Tensor& a, const Tensor& b);
Tensor doubled(RankContext& context, Tensor tensor, int times = 1);
/// Row i holds row i + by of before, around the end.
Tensor rolled_rows(RankContext& context, const Tensor& tensor, std::int64_t by);
/// The same for blocks of `unit` columns.
Tensor rolled_cols(RankContext& context, const Tensor& tensor, std::int64_t by, std::int64_t unit = 1);
/// Stretches of columns, one after the other.
Tensor joined_cols(RankContext& context, std::span<const Tensor> parts);
/// A copy whose numbers were changed on the host, row-major. Not over the field.
Tensor changed(RankContext& context, const Tensor& tensor,
               const std::function<void(std::span<double> values, std::int64_t cols)>& change);

/// A copy of a rank's shard, or other ranges of the whole tensor in its place. A vector's ranges are its elements.
Tensor loaded(RankContext& context, const Module& module, bool bias, const Ranges& rows,
              const Ranges& cols);

}  // namespace shardcheck::faults
