// SPDX-License-Identifier: Apache-2.0
// The built-in ops, one file each. A new op is one file, one line here and one in registry.cpp.
#pragma once

#include <memory>

#include "sharded/op.hpp"

namespace shardcheck::ops {

std::unique_ptr<const Op> make_embedding();
std::unique_ptr<const Op> make_linear();
std::unique_ptr<const Op> make_bias();
std::unique_ptr<const Op> make_rms_norm();
std::unique_ptr<const Op> make_head_norm();
std::unique_ptr<const Op> make_layer_norm();
std::unique_ptr<const Op> make_rms_statistic();
std::unique_ptr<const Op> make_rms_apply();
std::unique_ptr<const Op> make_rope();
std::unique_ptr<const Op> make_split();
std::unique_ptr<const Op> make_cache();
std::unique_ptr<const Op> make_attention();
std::unique_ptr<const Op> make_gate();
std::unique_ptr<const Op> make_unary();
std::unique_ptr<const Op> make_add();
std::unique_ptr<const Op> make_add_rms_norm();

/// Bytes of all operands: what an op moves when each is touched once.
std::int64_t operand_bytes(const std::vector<Extent>& inputs, const std::vector<Extent>& outputs);
/// Bytes of a weight [rows, cols] and its bias, if used, in the storage dtype, on this rank.
std::int64_t weight_bytes(const Instruction& instruction, const RankContext& context);

}  // namespace shardcheck::ops
