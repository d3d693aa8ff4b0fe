// SPDX-License-Identifier: Apache-2.0
// Attention of few queries: the keys are cut into stretches, a warp takes one, and a second kernel merges their states
// in order of position. A lane scores a key of its own (keys pass through shared memory, so that they are read along
// head_dim); then each value goes straight to the lanes that hold its columns.
#pragma once

#include "kernels/cuda/attention_rows.cuh"

namespace shardcheck::gpu {

inline constexpr std::int64_t kFewQueries = 8;
inline constexpr std::int64_t kMostDecodeCols = 256;  // head_dim
inline constexpr int kMostSplits = 256;

inline bool few_queries(std::int64_t queries, std::int64_t head_dim) {
  return queries <= kFewQueries && head_dim <= kMostDecodeCols;
}

/// Keys of one stretch, in whole warps.
inline std::int64_t keys_per_split(std::int64_t keys) {
  const std::int64_t per_lane = (keys + kWarp * kMostSplits - 1) / (kWarp * kMostSplits);
  return kWarp * std::max<std::int64_t>(per_lane, 1);
}

/// Extents of a block's work: kWarps stretches of keys for kRows rows. A lane holds kC columns of every row.
template <typename T, int kRowsOfTile, int kColsOfTile>
struct DecodeTile {
  using A = Accumulate<T>;
  static constexpr int kRows = kRowsOfTile, kCols = kColsOfTile, kWarps = 4, kThreads = kWarps * kWarp;
  static constexpr int kC = kCols / kWarp;
  static constexpr int kDepth = sizeof(A) == 8 ? 16 : 32;  // of head_dim at a time
  static constexpr int kUnrolled = 8;                      // divides kDepth
  static constexpr int kStride = kDepth + 1;  // lanes read one column of 32 keys: all banks
  static constexpr int kKeysAtOnce = 4;       // values on their way together
};

/// States of stretches [blockIdx.x * kWarps, ...) of keys for rows [blockIdx.y * kRows, ...) of group blockIdx.z;
/// stretch s writes rows [s * M, (s + 1) * M) of max, sum and acc.     grid (stretches / kWarps, rows / kRows, groups)
template <typename T, int kRowsOfTile, int kColsOfTile>
__global__ void attention_stretches(View<const T> q, View<const T> k, View<const T> v,
                                    View<Accumulate<T>> max, View<Accumulate<T>> sum,
                                    View<Accumulate<T>> acc, Sight sight, Accumulate<T> scale,
                                    int head_dim, std::int64_t stretch, HeadGroups groups) {
  using A = Accumulate<T>;
  using Tile = DecodeTile<T, kRowsOfTile, kColsOfTile>;
  constexpr int kRows = Tile::kRows, kC = Tile::kC, kStride = Tile::kStride,
                kUnrolled = Tile::kUnrolled;
  SHARED_ARRAY(A, queries, Tile::kCols * Tile::kRows);            // [column][row]
  SHARED_ARRAY(A, staged, Tile::kWarps * kWarp * Tile::kStride);  // of each warp: [key][depth]
  SHARED_ARRAY(A, weights, Tile::kWarps * kWarp * Tile::kRows);   // of each warp: [key][row]
  SHARED_ARRAY(std::int64_t, query_of, Tile::kRows);
  SHARED_ARRAY(int, head_of, Tile::kRows);

  const int group = static_cast<int>(blockIdx.z), heads = groups.heads(group);
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kRows, rows = q.rows * heads - first_row;
  if (rows <= 0) return;
  const int count = rows < kRows ? static_cast<int>(rows) : kRows;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  if (thread < kRows) {
    const std::int64_t row = first_row + (thread < count ? thread : count - 1);
    query_of[thread] = row / heads;
    head_of[thread] = groups.q_head[groups.first[group] + static_cast<int>(row % heads)];
  }
  __syncthreads();
  for (int i = thread; i < Tile::kCols * kRows; i += Tile::kThreads) {
    const int c = i / kRows, row = i % kRows;
    queries[i] = c < head_dim ? widen(q(query_of[row], std::int64_t{head_of[row]} * head_dim + c))
                              : A{0};
  }
  __syncthreads();

  const std::int64_t split = std::int64_t{blockIdx.x} * Tile::kWarps + warp;
  const std::int64_t split_begin = split * stretch;
  if (split > 0 && split_begin >= k.rows) return;
  const std::int64_t kv_col = std::int64_t{groups.kv_head[group]} * head_dim;
  const int my_keys = warp * kWarp * kStride, my_weights = warp * kWarp * kRows;
  A row_max[kRows], row_sum[kRows], row_acc[kRows][kC];  // row_sum: of this lane's keys
  UNROLLED for (int r = 0; r < kRows; ++r) {
    row_max[r] = kMinusInfinity<A>;
    row_sum[r] = A{0};
    UNROLLED for (int c = 0; c < kC; ++c) row_acc[r][c] = A{0};
  }

  const KeyRange first_sees = sight.seen(query_of[0]), last_sees = sight.seen(query_of[count - 1]);
  const std::int64_t split_end = split_begin + stretch < last_sees.end ? split_begin + stretch
                                                                       : last_sees.end;
  for (std::int64_t key0 = split_begin; key0 < split_end; key0 += kWarp) {
    if (key0 + kWarp <= first_sees.begin) continue;
    const int keys = split_end - key0 < kWarp ? static_cast<int>(split_end - key0) : kWarp;
    const bool all = last_sees.begin <= key0 && key0 + keys <= first_sees.end;  // every row sees every key
    const auto sees = [&](int r, int key) {
      const KeyRange seen = sight.seen(query_of[r]);
      return key0 + key >= seen.begin && key0 + key < seen.end;
    };
    A scores[kRows];
    UNROLLED for (int r = 0; r < kRows; ++r) scores[r] = A{0};
    for (int c0 = 0; c0 < head_dim; c0 += Tile::kDepth) {
      const int depth = head_dim - c0 < Tile::kDepth ? head_dim - c0 : Tile::kDepth;
      __syncwarp();
      for (int i = lane; i < kWarp * Tile::kDepth; i += kWarp) {
        const int key = i / Tile::kDepth, c = i % Tile::kDepth;
        staged[my_keys + key * kStride + c] = key < keys && c < depth
                                                  ? widen(k(key0 + key, kv_col + c0 + c))
                                                  : A{0};
      }
      __syncwarp();
      for (int c1 = 0; c1 < depth; c1 += kUnrolled) {
        UNROLLED for (int c = c1; c < c1 + kUnrolled; ++c) {
          const A x = staged[my_keys + lane * kStride + c];
          UNROLLED for (int r = 0; r < kRows; ++r) {
            const A y = queries[(c0 + c) * kRows + r];
            scores[r] = std::fma(y, x, scores[r]);
          }
        }
      }
    }

    UNROLLED for (int r = 0; r < kRows; ++r) {
      scores[r] *= scale;
      const bool visible = lane < keys && (all || sees(r, lane));
      A highest = visible ? larger(row_max[r], scores[r]) : row_max[r];
      for (int step = kWarp / 2; step > 0; step /= 2) {
        highest = larger(highest, __shfl_xor_sync(kAllLanes, highest, step));
      }
      const A factor = exp_diff(row_max[r], highest);
      const A weight = visible ? exp_diff(scores[r], highest) : A{0};
      weights[my_weights + lane * kRows + r] = weight;
      row_max[r] = highest;
      row_sum[r] = std::fma(row_sum[r], factor, weight);
      UNROLLED for (int c = 0; c < kC; ++c) row_acc[r][c] *= factor;
    }
    __syncwarp();
    for (int first = 0; first < keys; first += Tile::kKeysAtOnce) {
      A values[Tile::kKeysAtOnce][kC];
      UNROLLED for (int i = 0; i < Tile::kKeysAtOnce; ++i) {
        UNROLLED for (int c = 0; c < kC; ++c) {
          const int col = c * kWarp + lane;
          values[i][c] = first + i < keys && col < head_dim ? widen(v(key0 + first + i, kv_col + col))
                                                            : A{0};
        }
      }
      UNROLLED for (int i = 0; i < Tile::kKeysAtOnce; ++i) {
        if (first + i >= keys) continue;
        UNROLLED for (int r = 0; r < kRows; ++r) {
          if (!all && !sees(r, first + i)) continue;  // not even times zero: it may be NaN
          const A weight = weights[my_weights + (first + i) * kRows + r];
          UNROLLED for (int c = 0; c < kC; ++c)
              row_acc[r][c] = std::fma(weight, values[i][c], row_acc[r][c]);
        }
      }
    }
  }

  UNROLLED for (int r = 0; r < kRows; ++r) {
    A total = row_sum[r];
    for (int step = kWarp / 2; step > 0; step /= 2)
      total += __shfl_xor_sync(kAllLanes, total, step);
    if (r >= count) continue;
    const std::int64_t row = split * q.rows + query_of[r], head = head_of[r];
    if (lane == 0) {
      max(row, head) = row_max[r];
      sum(row, head) = total;
    }
    UNROLLED for (int c = 0; c < kC; ++c) {
      const int col = c * kWarp + lane;
      if (col < head_dim) acc(row, head * head_dim + col) = row_acc[r][c];
    }
  }
}

/// The state of a whole from those of its stretches, first to last.
///            one block per (query, head)   split_* [splits * M, heads ..]   max, sum [M, heads]   acc [M, heads * d]
template <typename A>
__global__ void merge_stretches(View<const A> split_max, View<const A> split_sum,
                                View<const A> split_acc, View<A> max, View<A> sum, View<A> acc,
                                int head_dim, int splits) {
  SHARED_ARRAY(A, factors, kMostSplits);
  const std::int64_t query = blockIdx.x / max.cols, head = blockIdx.x % max.cols;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  A highest = kMinusInfinity<A>;
  for (int s = 0; s < splits; ++s) highest = larger(highest, split_max(s * max.rows + query, head));
  for (int s = thread; s < splits; s += threads) {
    factors[s] = exp_diff(split_max(s * max.rows + query, head), highest);
  }
  __syncthreads();
  for (int c = thread; c < head_dim; c += threads) {
    A total = A{0};
    for (int s = 0; s < splits; ++s) {
      const A factor = factors[s];
      total = std::fma(factor, split_acc(s * max.rows + query, head * head_dim + c), total);
    }
    acc(query, head * head_dim + c) = total;
  }
  if (thread != 0) return;
  A total = A{0};
  for (int s = 0; s < splits; ++s) {
    const A factor = factors[s];
    total = std::fma(factor, split_sum(s * max.rows + query, head), total);
  }
  max(query, head) = highest;
  sum(query, head) = total;
}

template <int kRows, int kCols, typename T>
void launch_attention_stretches(cudaStream_t stream, const AttentionOperands<T>& on,
                                std::int64_t splits, HeadMap heads) {
  using Tile = DecodeTile<T, kRows, kCols>;
  for (const HeadGroups& groups : grouped(heads)) {
    const dim3 grid(blocks_for(splits, Tile::kWarps), blocks_for(on.q.rows * groups.largest, kRows),
                    static_cast<unsigned>(groups.groups));
    launch(attention_stretches<T, kRows, kCols>,
           {"attention_partial", stream, grid, dim3(Tile::kThreads)}, on.q, on.k, on.v, on.max,
           on.sum, on.acc, on.sight, on.scale, on.head_dim, keys_per_split(on.k.rows), groups);
  }
}

template <int kCols, typename T>
void launch_attention_stretches(cudaStream_t stream, const AttentionOperands<T>& on,
                                std::int64_t splits, HeadMap heads) {
  std::int64_t rows = 0;  // of the largest group
  for (const HeadGroups& groups : grouped(heads)) rows = std::max(rows, on.q.rows * groups.largest);
  if (rows <= 1) return launch_attention_stretches<1, kCols>(stream, on, splits, heads);
  if constexpr (sizeof(Accumulate<T>) == 4) {  // in f64 more rows don't fit the registers
    if (rows > 4) return launch_attention_stretches<8, kCols>(stream, on, splits, heads);
  }
  return launch_attention_stretches<4, kCols>(stream, on, splits, heads);
}

/// Precondition: few_queries. `on` has room for the states of all stretches.
template <typename T>
void attention_decode(cudaStream_t stream, const AttentionOperands<T>& on, std::int64_t splits,
                      HeadMap heads) {
  if (on.head_dim <= 64) return launch_attention_stretches<64>(stream, on, splits, heads);
  if (on.head_dim <= 128) return launch_attention_stretches<128>(stream, on, splits, heads);
  return launch_attention_stretches<kMostDecodeCols>(stream, on, splits, heads);
}

}  // namespace shardcheck::gpu
