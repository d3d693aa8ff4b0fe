// SPDX-License-Identifier: Apache-2.0
#include "sharded/head_map.hpp"

#include <algorithm>

namespace shardcheck {

std::vector<std::int64_t> heads_of(const Layout& layout, int rank, std::int64_t head_dim) {
  std::vector<std::int64_t> heads;
  for (const Range& range : layout.feature_ranges(rank)) {
    for (std::int64_t at = range.begin; at < range.end; at += head_dim)
      heads.push_back(at / head_dim);
  }
  return heads;
}

std::vector<std::int32_t> head_map(const Layout& q, const Layout& k, int rank,
                                   const Attributes& attributes) {
  const auto head_dim = static_cast<std::int64_t>(attributes.at("head_dim"));
  const auto group = static_cast<std::int64_t>(attributes.at("num_heads") /
                                               attributes.at("num_kv_heads"));
  const std::vector<std::int64_t> kv_heads = heads_of(k, rank, head_dim);
  std::vector<std::int32_t> map;
  for (const std::int64_t head : heads_of(q, rank, head_dim)) {
    const auto found = std::find(kv_heads.begin(), kv_heads.end(), head / group);
    map.push_back(found == kv_heads.end() ? -1 : static_cast<std::int32_t>(found - kv_heads.begin()));
  }
  return map;
}

}  // namespace shardcheck
