// SPDX-License-Identifier: Apache-2.0
// The algebra of placements that several ops share: what each rule accepts on an axis, and how a layout changes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sharded/op.hpp"

namespace shardcheck {

/// `layout` with axis placed R: a partial taken as whole, or a shard taken as the whole tensor.
Layout assume_replicated(Layout layout, const Mesh& mesh, int axis);

/// Union of the ranges of the ranks along `axes`: the layout after an all_gather of features.
Layout gathered_features(Layout layout, const Mesh& mesh, const std::vector<int>& axes);
/// Each rank keeps its balanced part (units of `unit` elements) of what it had: a slice or scatter of features.
Layout split_features(Layout layout, const Mesh& mesh, const std::vector<int>& axes, std::int64_t unit);

/// Builds a violation that requires R on this axis of operand `input`.
PlacementViolation requires_replicated(const PlaceQuery& query, int input, int axis,
                                       std::string rule, std::string sentence);

/// Two operands that are placed differently on this axis, where they must be alike: nothing if they are. The first one
/// says how, unless the program goes on better the other way. P isn't told apart from R here.
std::optional<PlacementViolation> operands_differ(const PlaceQuery& query, int axis, std::string_view what);

/// `layout`, whose features this axis alone cuts, with the ranges of the balanced cut in units of heads, kv heads where
/// it has the features of those; as it is if other axes cut it too.
Layout cut_by_heads(Layout layout, const Config& config, const Mesh& mesh, int axis);
/// Operand `input` is cut inside a head on this axis: gathered, or its weight cut by head, and then `outputs` come out.
PlacementViolation head_is_cut(const PlaceQuery& query, int input, int axis, std::int64_t head_dim,
                               std::vector<Layout> outputs);

/// Rule of ops that act on each element by itself and aren't linear (norm-free): R and S pass, P is refused, all
/// operands must be placed alike.
Placed place_elementwise(const PlaceQuery& query, std::string_view what);

/// Rule of ops with a statistic over the features (norms): R, S(tokens) and S(sequence) pass.
Placed place_statistic(const PlaceQuery& query);

/// True if each rank's feature ranges fall on multiples of `unit`.
bool on_boundaries(const Layout& layout, const Mesh& mesh, std::int64_t unit);

}  // namespace shardcheck
