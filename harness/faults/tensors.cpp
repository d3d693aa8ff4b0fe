// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/tensors.hpp"

namespace shardcheck::faults {
namespace {

Tensor fresh(RankContext& context, const Tensor& like) {
  return context.device().allocate(context.stream(), like.dtype, like.rows, like.cols);
}

}  // namespace

Tensor copy_of(RankContext& context, const Tensor& tensor) {
  const Tensor out = fresh(context, tensor);
  context.device().copy(context.stream(), tensor, out);
  return out;
}

Tensor zeros_like(RankContext& context, const Tensor& tensor) {
  const Tensor out = fresh(context, tensor);
  context.device().upload(context.stream(), HostTensor(tensor.dtype, {tensor.rows, tensor.cols}), out);
  return out;
}

Tensor sum_of(RankContext& context, const Tensor& a, const Tensor& b) {
  const Tensor out = fresh(context, a);
  context.device().add(context.stream(), a, b, out);
  return out;
}

Tensor doubled(RankContext& context, Tensor tensor, int times) {
  for (int i = 0; i < times; ++i) tensor = sum_of(context, tensor, tensor);
  return tensor;
}

Tensor rolled_rows(RankContext& context, const Tensor& tensor, std::int64_t by) {
  const Tensor out = fresh(context, tensor);
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    const std::int64_t from = ((row + by) % tensor.rows + tensor.rows) % tensor.rows;
    context.device().copy(context.stream(), tensor.row_range(from, from + 1),
                          out.row_range(row, row + 1));
  }
  return out;
}

Tensor rolled_cols(RankContext& context, const Tensor& tensor, std::int64_t by, std::int64_t unit) {
  const Tensor out = fresh(context, tensor);
  const std::int64_t blocks = tensor.cols / unit;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t from = ((block + by) % blocks + blocks) % blocks;
    context.device().copy(context.stream(), tensor.col_range(from * unit, (from + 1) * unit),
                          out.col_range(block * unit, (block + 1) * unit));
  }
  return out;
}

Tensor joined_cols(RankContext& context, std::span<const Tensor> parts) {
  std::int64_t cols = 0;
  for (const Tensor& part : parts) cols += part.cols;
  const Tensor out = context.device().allocate(context.stream(), parts[0].dtype, parts[0].rows, cols);
  std::int64_t at = 0;
  for (const Tensor& part : parts) {
    context.device().copy(context.stream(), part, out.col_range(at, at + part.cols));
    at += part.cols;
  }
  return out;
}

Tensor changed(RankContext& context, const Tensor& tensor,
               const std::function<void(std::span<double> values, std::int64_t cols)>& change) {
  std::vector<double> values = context.device().to_host(context.stream(), tensor).to_f64();
  change(values, tensor.cols);
  const Tensor out = fresh(context, tensor);
  context.device().upload(context.stream(),
                          round_to(tensor.dtype, {tensor.rows, tensor.cols}, values), out);
  return out;
}

Tensor loaded(RankContext& context, const Module& module, bool bias, const Ranges& rows,
              const Ranges& cols) {
  const bool vector = bias || module.kind == ModuleKind::norm;
  return vector
             ? context.store().shard(bias ? module.bias() : module.weight(), {{0, 1}}, rows,
                                     context.device(), context.stream())
             : context.store().shard(module.weight(), rows, cols, context.device(), context.stream());
}

}  // namespace shardcheck::faults
