// SPDX-License-Identifier: Apache-2.0
// Attention of many queries: tiles of rows against tiles of keys, with a running maximum, sum and accumulator per row
// (online softmax), so that no score is ever in global memory. A block has a tile of rows and goes over the keys that
// some row of it sees; queries, keys and values pass through shared memory piece by piece, widened once. Tiles of keys
// count from the stretch's start and a row's numbers depend on its own keys alone: its bits don't depend on other rows.
#pragma once

#include <bit>

#include "kernels/cuda/attention_rows.cuh"

namespace shardcheck::gpu {

/// Extents of a block's work. A thread holds kR rows x kK keys of scores and kR rows x kC columns of the accumulator;
/// the kKeyLanes threads of a row are neighbours in one warp.
template <typename T, int kCols>
struct PrefillTile {
  using A = Accumulate<T>;
  static constexpr int kThreads = kCols > 128 ? 256 : 128;
  static constexpr int kRowLanes = 16, kKeyLanes = kThreads / kRowLanes;
  static constexpr int kRows = sizeof(A) == 8 ? 32 : 64, kKeys = kRows;
  static constexpr int kR = kRows / kRowLanes, kK = kKeys / kKeyLanes, kC = kCols / kKeyLanes;
  static constexpr int kTogether = 4;  // neighbours that a thread holds, one 16-byte load in f32
  static constexpr int kDepth = 32;    // of head_dim at a time
  static constexpr int kUnrolled = 8;  // divides kDepth
  static constexpr int kStride = kRows + 4;  // keeps the transposing stores on different banks
  static constexpr int kStaged = 2 * kDepth * kStride;
  static constexpr int kValues = static_cast<int>(
      std::bit_floor(static_cast<unsigned>(kStaged / kCols)));  // keys of V
  static_assert(kKeys % kValues == 0 || kValues > kKeys);

  /// The i-th of `kCount` items that lane `lane` of a row holds: runs of neighbours, so that a warp's loads are wide.
  template <int kCount>
  __device__ static int item(int i, int lane) {
    constexpr int kRun = kCount < kTogether ? kCount : kTogether;
    return i / kRun * (kKeyLanes * kRun) + lane * kRun + i % kRun;
  }
};

/// to[c * kStride + row] = x(row, c) for `depth` columns, rows behind `count` and columns up to a whole kUnrolled zero.
/// A warp writes eight columns of four rows: all banks, and whole sectors of global memory.
template <typename Tile, typename Shared, typename Load>
__device__ inline void stage_transposed(Shared& to, int offset, int count, int depth, Load load) {
  const int whole = (depth + Tile::kUnrolled - 1) / Tile::kUnrolled * Tile::kUnrolled;
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * Tile::kDepth; i += Tile::kThreads) {
    const int row = i % 4 + i / (4 * Tile::kDepth) * 4, c = i / 4 % Tile::kDepth;
    if (c < whole)
      to[offset + c * Tile::kStride + row] = row < count && c < depth ? load(row, c)
                                                                      : typename Tile::A{0};
  }
}

/// Softmax statistics and accumulator of rows [tile * kRows, ...) of one group, for columns from blockIdx.z * kCols on.
///                                       grid (tiles of rows, groups, stretches of kCols columns), kThreads threads
template <typename T, int kCols>
__global__ void attention_tiles(View<const T> q, View<const T> k, View<const T> v,
                                View<Accumulate<T>> max, View<Accumulate<T>> sum,
                                View<Accumulate<T>> acc, Sight sight, Accumulate<T> scale,
                                int head_dim, HeadGroups groups) {
  using A = Accumulate<T>;
  using Tile = PrefillTile<T, kCols>;
  constexpr int kR = Tile::kR, kK = Tile::kK, kC = Tile::kC, kStride = Tile::kStride;
  SHARED_ARRAY(A, staged, Tile::kStaged);  // q and k [depth][row], [depth][key]; then v [key][column]
  SHARED_ARRAY(A, weights, Tile::kKeys * Tile::kStride);  // [key][row]
  SHARED_ARRAY(std::int64_t, query_of, Tile::kRows);
  SHARED_ARRAY(int, head_of, Tile::kRows);

  const int group = static_cast<int>(blockIdx.y), heads = groups.heads(group);
  const std::int64_t first_row = (gridDim.x - 1 - std::int64_t{blockIdx.x}) *
                                 Tile::kRows;  // the longest first
  const std::int64_t rows = q.rows * heads - first_row;
  if (rows <= 0) return;
  const int count = rows < Tile::kRows ? static_cast<int>(rows) : Tile::kRows;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < Tile::kRows) {
    const std::int64_t row = first_row + (thread < count ? thread : count - 1);
    query_of[thread] = row / heads;
    head_of[thread] = groups.q_head[groups.first[group] + static_cast<int>(row % heads)];
  }
  __syncthreads();

  const int row0 = thread / Tile::kKeyLanes * kR, lane = thread % Tile::kKeyLanes;
  const bool active = thread / kWarp * (kWarp / Tile::kKeyLanes) * kR < count;  // the same for a whole warp
  const std::int64_t kv_col = std::int64_t{groups.kv_head[group]} * head_dim;
  const int first_col = static_cast<int>(blockIdx.z) * kCols;
  const int cols = head_dim - first_col < kCols ? head_dim - first_col : kCols;
  A row_max[kR], row_sum[kR], row_acc[kR][kC];
  UNROLLED for (int r = 0; r < kR; ++r) {
    row_max[r] = kMinusInfinity<A>;
    row_sum[r] = A{0};
    UNROLLED for (int c = 0; c < kC; ++c) row_acc[r][c] = A{0};
  }

  const std::int64_t end = sight.seen(query_of[count - 1]).end;
  std::int64_t first_key = sight.seen(query_of[0]).begin / Tile::kKeys * Tile::kKeys;
  for (; first_key < end; first_key += Tile::kKeys) {
    const int keys = end - first_key < Tile::kKeys ? static_cast<int>(end - first_key) : Tile::kKeys;
    A scores[kR][kK];
    UNROLLED for (int r = 0; r < kR; ++r) {
      UNROLLED for (int i = 0; i < kK; ++i) scores[r][i] = A{0};
    }
    for (int c0 = 0; c0 < head_dim; c0 += Tile::kDepth) {
      const int depth = head_dim - c0 < Tile::kDepth ? head_dim - c0 : Tile::kDepth;
      __syncthreads();  // what was staged before is used up
      stage_transposed<Tile>(staged, 0, count, depth, [&](int row, int c) {
        return widen(q(query_of[row], std::int64_t{head_of[row]} * head_dim + c0 + c));
      });
      stage_transposed<Tile>(staged, Tile::kDepth * kStride, keys, depth, [&](int key, int c) {
        return widen(k(first_key + key, kv_col + c0 + c));
      });
      __syncthreads();
      if (!active) continue;
      for (int c1 = 0; c1 < depth; c1 += Tile::kUnrolled) {
        UNROLLED for (int c = c1; c < c1 + Tile::kUnrolled; ++c) {
          A a[kR], b[kK];
          UNROLLED for (int r = 0; r < kR; ++r) a[r] = staged[c * kStride + row0 + r];
          UNROLLED for (int i = 0; i < kK; ++i) {
            b[i] = staged[(Tile::kDepth + c) * kStride + Tile::template item<kK>(i, lane)];
          }
          UNROLLED for (int r = 0; r < kR; ++r) {
            UNROLLED for (int i = 0; i < kK; ++i) scores[r][i] = std::fma(a[r], b[i], scores[r][i]);
          }
        }
      }
    }

    int begin_of[kR], end_of[kR];  // the keys of this tile that each row sees
    bool all = true;
    if (active) {
      UNROLLED for (int r = 0; r < kR; ++r) {
        const KeyRange seen = sight.seen(query_of[row0 + r]);
        begin_of[r] = offset_within(seen.begin, first_key, keys);
        end_of[r] = offset_within(seen.end, first_key, keys);
        all = all && begin_of[r] == 0 && end_of[r] == keys;
        const auto sees = [&](int key) { return key >= begin_of[r] && key < end_of[r]; };
        A highest = row_max[r];
        UNROLLED for (int i = 0; i < kK; ++i) {
          scores[r][i] *= scale;
          if (sees(Tile::template item<kK>(i, lane))) highest = larger(highest, scores[r][i]);
        }
        UNROLLED for (int step = Tile::kKeyLanes / 2; step > 0; step /= 2) {
          highest = larger(highest, __shfl_xor_sync(kAllLanes, highest, step));
        }
        const A factor = exp_diff(row_max[r], highest);
        A total = A{0};
        UNROLLED for (int i = 0; i < kK; ++i) {
          const int key = Tile::template item<kK>(i, lane);
          const A weight = sees(key) ? exp_diff(scores[r][i], highest) : A{0};
          total += weight;
          weights[key * kStride + row0 + r] = weight;
        }
        UNROLLED for (int step = Tile::kKeyLanes / 2; step > 0; step /= 2) {
          total += __shfl_xor_sync(kAllLanes, total, step);
        }
        row_max[r] = highest;
        row_sum[r] = std::fma(row_sum[r], factor, total);
        UNROLLED for (int c = 0; c < kC; ++c) row_acc[r][c] *= factor;
      }
    }

    for (int key0 = 0; key0 < keys; key0 += Tile::kValues) {
      const int some = keys - key0 < Tile::kValues ? keys - key0 : Tile::kValues;
      __syncthreads();
      for (int i = thread; i < some * kCols; i += Tile::kThreads) {
        const int key = i / kCols, c = i % kCols;
        staged[i] = c < cols ? widen(v(first_key + key0 + key, kv_col + first_col + c)) : A{0};
      }
      __syncthreads();
      if (!active) continue;
      for (int key = key0; key < key0 + some; ++key) {
        A a[kR], b[kC];
        UNROLLED for (int r = 0; r < kR; ++r) a[r] = weights[key * kStride + row0 + r];
        UNROLLED for (int c = 0; c < kC; ++c) {
          b[c] = staged[(key - key0) * kCols + Tile::template item<kC>(c, lane)];
        }
        UNROLLED for (int r = 0; r < kR; ++r) {
          if (!all && (key < begin_of[r] || key >= end_of[r]))
            continue;  // not even times zero: it may be NaN
          UNROLLED for (int c = 0; c < kC; ++c) row_acc[r][c] = std::fma(a[r], b[c], row_acc[r][c]);
        }
      }
    }
  }

  if (!active) return;
  UNROLLED for (int r = 0; r < kR; ++r) {
    if (row0 + r >= count) continue;
    const std::int64_t query = query_of[row0 + r], head = head_of[row0 + r];
    if (lane == 0 && first_col == 0) {
      max(query, head) = row_max[r];
      sum(query, head) = row_sum[r];
    }
    UNROLLED for (int c = 0; c < kC; ++c) {
      const int col = Tile::template item<kC>(c, lane);
      if (col < cols) acc(query, head * head_dim + first_col + col) = row_acc[r][c];
    }
  }
}

template <int kCols, typename T>
void launch_attention_tiles(cudaStream_t stream, const AttentionOperands<T>& on, HeadMap heads) {
  using Tile = PrefillTile<T, kCols>;
  for (const HeadGroups& groups : grouped(heads)) {
    const dim3 grid(blocks_for(on.q.rows * groups.largest, Tile::kRows),
                    static_cast<unsigned>(groups.groups), blocks_for(on.head_dim, kCols));
    launch(attention_tiles<T, kCols>, {"attention_partial", stream, grid, dim3(Tile::kThreads)},
           on.q, on.k, on.v, on.max, on.sum, on.acc, on.sight, on.scale, on.head_dim, groups);
  }
}

/// Any number of queries and keys, any head_dim; beyond kMostCols columns the scores are computed once per stretch of
/// kMostCols columns.
template <typename T>
void attention_prefill(cudaStream_t stream, const AttentionOperands<T>& on, HeadMap heads) {
  constexpr int kMostCols = 256;
  if (on.head_dim <= 64) return launch_attention_tiles<64>(stream, on, heads);
  if (on.head_dim <= 128) return launch_attention_tiles<128>(stream, on, heads);
  return launch_attention_tiles<kMostCols>(stream, on, heads);
}

}  // namespace shardcheck::gpu
