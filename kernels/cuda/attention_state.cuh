// SPDX-License-Identifier: Apache-2.0
// What becomes of attention states: two are merged by log-sum-exp, one is divided out.
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/pack.cuh"

namespace shardcheck::gpu {

/// into = merge of into and other.            one block per (query, head)   max, sum [M, heads]   acc [M, heads * d]
template <typename A>
__global__ void merge_states(View<const A> other_max, View<const A> other_sum, View<const A> other_acc,
                             View<A> max, View<A> sum, View<A> acc, int head_dim) {
  const std::int64_t query = blockIdx.x / max.cols, head = blockIdx.x % max.cols;
  const A ours = max(query, head), theirs = other_max(query, head);
  const A highest = larger(ours, theirs);
  const A our_factor = exp_diff(ours, highest), their_factor = exp_diff(theirs, highest);
  for (int c = static_cast<int>(threadIdx.x); c < head_dim; c += static_cast<int>(blockDim.x)) {
    A& x = acc(query, head * head_dim + c);
    x = x * our_factor + other_acc(query, head * head_dim + c) * their_factor;
  }
  __syncthreads();  // every thread has read max
  if (threadIdx.x != 0) return;
  max(query, head) = highest;
  sum(query, head) = sum(query, head) * our_factor + other_sum(query, head) * their_factor;
}

/// out = acc / sum, one rounding.                                          sum [M, heads]   acc, out [M, heads * d]
template <typename T, typename A>
__global__ void divide_out(View<const A> sum, View<const A> acc, View<T> out, int head_dim) {
  for (std::int64_t row = grid_first_y(); row < out.rows; row += grid_step_y()) {
    for (std::int64_t col = grid_first_x(); col < out.cols; col += grid_step_x()) {
      out(row, col) = narrow<T>(acc(row, col) / sum(row, col / head_dim));
    }
  }
}

template <typename A>
void launch_merge_states(cudaStream_t stream, const AttentionState& other, const AttentionState& into) {
  constexpr unsigned kThreads = 64;
  const dim3 grid(static_cast<unsigned>(into.max.elements()));
  launch(merge_states<A>, {"attention_merge", stream, grid, dim3(kThreads)}, view<const A>(other.max),
         view<const A>(other.sum), view<const A>(other.acc), view<A>(into.max), view<A>(into.sum),
         view<A>(into.acc), static_cast<int>(into.acc.cols / into.max.cols));
}

template <typename T, typename A>
void launch_divide_out(cudaStream_t stream, const AttentionState& state, std::int64_t head_dim,
                       const Tensor& out) {
  const auto [grid, block] = cover(out.rows, out.cols);
  launch(divide_out<T, A>, {"attention_finish", stream, grid, block}, view<const A>(state.sum),
         view<const A>(state.acc), view<T>(out), static_cast<int>(head_dim));
}

}  // namespace shardcheck::gpu
