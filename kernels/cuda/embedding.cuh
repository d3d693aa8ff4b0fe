// SPDX-License-Identifier: Apache-2.0
// Rows of a table by id, where a rank owns ranges of the ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cast.cuh"

namespace shardcheck::gpu {

/// Ids [begin, end) lie in the table from row `first` on.
struct OwnedRows {
  std::int64_t begin, end, first;
};

inline constexpr int kMostRanges = 32;  // by value in one launch: 768 bytes
using OwnedList = Array<OwnedRows, kMostRanges>;

/// Row of the table that holds `id`, or -1.
__device__ inline std::int64_t local_row(std::int64_t id, const OwnedList& owned) {
  for (int i = 0; i < owned.size; ++i) {
    if (id >= owned[i].begin && id < owned[i].end) return owned[i].first + id - owned[i].begin;
  }
  return -1;
}

/// out[m] = table[local_row(ids[m])]. Rows of other ids become 0 where clears is 1, and else stay what they are.
///                                                                   ids [1, M]  table [V_r, D]  out [M, D]
template <int kCount, typename In, typename Out>
__global__ void gather_rows(View<const std::int64_t> ids, View<const In> table, View<Out> out,
                            OwnedList owned, int clears) {
  constexpr bool kAligned = kCount > 1;
  for (std::int64_t m = grid_first_y(); m < out.rows; m += grid_step_y()) {
    const std::int64_t row = local_row(ids(0, m), owned);
    if (row < 0 && clears == 0) continue;
    for (std::int64_t col = grid_first_x() * kCount; col < out.cols; col += grid_step_x() * kCount) {
      Pack<Out, kCount> result = {};
      if (row >= 0) {
        const Pack<In, kCount> in = load_pack<kCount, kAligned>(table, row, col);
        for (int i = 0; i < kCount; ++i) result.values[i] = convert<Out>(in.values[i]);
      }
      store_pack<kCount, kAligned>(result, out, m, col);
    }
  }
}

/// The ranges with the table's rows, without empty ones and with neighbours joined.
inline std::vector<OwnedRows> owned_rows(OwnedRanges owned) {
  std::vector<OwnedRows> result;
  std::int64_t first = 0;
  for (const auto& [begin, end] : owned) {
    if (begin == end) continue;
    if (!result.empty() && result.back().end == begin) {
      result.back().end = end;
    } else {
      result.push_back({begin, end, first});
    }
    first += end - begin;
  }
  return result;
}

/// Any number of ranges: more than fit one launch go in several, the last ones first, so that the first range that
/// holds an id decides, as in one.
void embedding(cudaStream_t stream, const Tensor& ids, const Tensor& table, OwnedRanges owned,
               const Tensor& out) {
  const std::vector<OwnedRows> ranges = owned_rows(owned);
  const auto count = static_cast<std::int64_t>(ranges.size());
  with_storage_type(table.dtype, [&]<typename In>(In) {
    with_storage_type(out.dtype, [&]<typename Out>(Out) {
      constexpr int kMany = kPackOf<In>;
      const bool many = packs({&table, &out}, kMany);
      const auto [grid, block] = cover(out.rows, many ? (out.cols + kMany - 1) / kMany : out.cols);
      int clears = 1;
      for (std::int64_t end = count; end > 0 || clears == 1; end -= kMostRanges, clears = 0) {
        const std::int64_t begin = std::max<std::int64_t>(end - kMostRanges, 0);
        OwnedList list;
        list.size = static_cast<int>(end - begin);
        std::copy(ranges.begin() + begin, ranges.begin() + end, list.values);
        launch(many ? gather_rows<kMany, In, Out> : gather_rows<1, In, Out>,
               {"embedding", stream, grid, block}, view<const std::int64_t>(ids),
               view<const In>(table), view<Out>(out), list, clears);
      }
    });
  });
}

}  // namespace shardcheck::gpu
