// SPDX-License-Identifier: Apache-2.0
// The attention primitives: which kernel, in which types.
#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/primitives.hpp"

namespace shardcheck::gpu {
namespace {

template <typename T>
AttentionOperands<T> operands(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionShape& shape, const Tensor& max, const Tensor& sum,
                              const Tensor& acc) {
  using A = Accumulate<T>;
  return {.q = view<const T>(q),
          .k = view<const T>(k),
          .v = view<const T>(v),
          .max = view<A>(max),
          .sum = view<A>(sum),
          .acc = view<A>(acc),
          .sight = {.position = shape.q_first - shape.k_first, .window = shape.window, .keys = k.rows},
          .scale = static_cast<A>(shape.scale),
          .head_dim = static_cast<int>(shape.head_dim)};
}

template <typename T>
void partial(cudaStream_t stream, const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
             const AttentionShape& shape, const AttentionWorkspace& workspace,
             const AttentionState& out) {
  using A = Accumulate<T>;
  const auto whole = operands<T>(q, k, v, shape, out.max, out.sum, out.acc);
  if (!few_queries(q.rows, shape.head_dim)) return attention_prefill<T>(stream, whole, heads);
  const std::int64_t splits = attention_splits(q.rows, k.rows, shape.head_dim);
  if (splits == 1) return attention_decode<T>(stream, whole, splits, heads);
  const auto parts = operands<T>(q, k, v, shape, workspace.max, workspace.sum, workspace.acc);
  attention_decode<T>(stream, parts, splits, heads);
  constexpr unsigned kThreads = 128;
  const dim3 grid(static_cast<unsigned>(out.max.elements()));
  launch(merge_stretches<A>, {"attention_partial", stream, grid, dim3(kThreads)},
         view<const A>(workspace.max), view<const A>(workspace.sum), view<const A>(workspace.acc),
         whole.max, whole.sum, whole.acc, whole.head_dim, static_cast<int>(splits));
}

}  // namespace

std::int64_t attention_splits(std::int64_t queries, std::int64_t keys, std::int64_t head_dim) {
  if (!few_queries(queries, head_dim)) return 1;
  const std::int64_t stretch = keys_per_split(keys);
  return std::max<std::int64_t>(1, (keys + stretch - 1) / stretch);
}

void attention_partial(cudaStream_t stream, const Tensor& q, const Tensor& k, const Tensor& v,
                       HeadMap heads, const AttentionShape& shape,
                       const AttentionWorkspace& workspace, const AttentionState& out) {
  with_storage_type(q.dtype, [&](auto type) {
    partial<decltype(type)>(stream, q, k, v, heads, shape, workspace, out);
  });
}

void attention_merge(cudaStream_t stream, const AttentionState& other, const AttentionState& into) {
  if (into.max.dtype == DType::f64) return launch_merge_states<double>(stream, other, into);
  return launch_merge_states<float>(stream, other, into);
}

void attention_finish(cudaStream_t stream, const AttentionState& state, std::int64_t head_dim,
                      const Tensor& out) {
  with_storage_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    if (state.max.dtype == DType::f64)
      return launch_divide_out<T, double>(stream, state, head_dim, out);
    return launch_divide_out<T, float>(stream, state, head_dim, out);
  });
}

}  // namespace shardcheck::gpu
