// SPDX-License-Identifier: Apache-2.0
// softmax(scale q k^T) v per q head, over what the step let it see. With p the weights, d the head dimension, S the
// number of keys and A = sum_j p_j |v_j|:
//   b = u_out |y| + u_storage sqrt(sum_j (p_j v_j)^2)                      only where weights are rounded to storage
//     + u_acc A (4 + 2 scale sqrt(d) max_j ||q * k_j||_2 + sqrt(S) + |max score|)
//     + what e^x loses below the accumulator's normal numbers
// An absolute error of a score is a relative error of its weight; a score of d products is off by about
// sqrt(d) u_acc scale ||q * k_j||_2, and e^(s - max) rounds its argument.
#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "harness/local/local_op.hpp"

namespace shardcheck {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strided = Eigen::Map<const Rows, 0, Eigen::OuterStride<>>;

constexpr std::int64_t kQueryBlock = 128;  // rows of scores held at once

struct Shape {
  std::int64_t head_dim, window;
  double scale;
  double u_out, u_acc, u_weights, lost, underflow;
};

// Columns [col, col + n) of rows [row, row + m).
Strided block(const F64Matrix& x, std::int64_t row, std::int64_t m, std::int64_t col, std::int64_t n) {
  return {x.data() + row * x.cols() + col, m, n, Eigen::OuterStride<>(x.cols())};
}

// Queries at positions [first, first + m) of one head against the keys at positions [keys.begin, keys.end); the first
// output element is (row, col).
void judge_block(const Strided& q, const Strided& k, const Strided& v, std::int64_t first,
                 const Range& keys, const Shape& shape, std::int64_t row, std::int64_t col,
                 LocalValue& value) {
  const double root_d = std::sqrt(static_cast<double>(shape.head_dim));
  Rows weights = shape.scale * (q * k.transpose());  // [m, N] scores, then softmax weights
  const Rows squares = q.cwiseAbs2() * k.cwiseAbs2().transpose();  // [m, N] ||q * k_j||^2
  Eigen::VectorXd factor(q.rows());
  for (Eigen::Index m = 0; m < q.rows(); ++m) {
    const std::int64_t position = first + m;
    const std::int64_t begin = shape.window > 0 ? std::max(keys.begin, position - shape.window + 1)
                                                : keys.begin;
    const Eigen::Index from = begin - keys.begin;
    const Eigen::Index seen = std::min(keys.end, position + 1) - begin;
    auto all = weights.row(m);
    auto visible = all.segment(from, seen);
    const double largest = visible.maxCoeff();
    double sum = 0.0;
    for (Eigen::Index j = 0; j < seen; ++j) {
      visible(j) = std::exp(visible(j) - largest);
      sum += visible(j);
    }
    visible /= sum;
    all.head(from).setZero();
    all.tail(all.size() - from - seen).setZero();
    const double score_norm = std::sqrt(squares.row(m).segment(from, seen).maxCoeff());
    factor(m) = shape.u_acc * (4.0 + 2.0 * shape.scale * root_d * score_norm +
                               std::sqrt(static_cast<double>(seen)) + std::abs(largest));
  }
  const Rows magnitudes = v.cwiseAbs();
  const Rows y = weights * v;
  const Rows a = weights * magnitudes;
  const Eigen::RowVectorXd lost = shape.lost * static_cast<double>(v.rows()) *
                                  magnitudes.colwise().maxCoeff();
  Rows rounded = Rows::Zero(y.rows(), y.cols());
  if (shape.u_weights > 0.0)
    rounded = shape.u_weights * (weights.cwiseAbs2() * v.cwiseAbs2()).cwiseSqrt();
  for (Eigen::Index m = 0; m < y.rows(); ++m) {
    for (Eigen::Index d = 0; d < y.cols(); ++d) {
      value.y(row + m, col + d) = y(m, d);
      value.budget(row + m, col + d) = shape.u_out * std::abs(y(m, d)) + factor(m) * a(m, d) +
                                       lost(d) + rounded(m, d) + shape.underflow;
    }
  }
}

bool wanted(const Ranges& columns, std::int64_t begin, std::int64_t end) {
  return std::any_of(columns.begin(), columns.end(),
                     [=](const Range& range) { return range.begin < end && begin < range.end; });
}

}  // namespace

LocalValue local_attention(const LocalCall& call) {
  const F64Matrix &q = call.inputs[0], &k = call.inputs[1], &v = call.inputs[2];
  const auto heads = static_cast<std::int64_t>(call.attribute("num_heads"));
  const auto kv_heads = static_cast<std::int64_t>(call.attribute("num_kv_heads"));
  Shape shape{};
  shape.head_dim = static_cast<std::int64_t>(call.attribute("head_dim"));
  shape.window = static_cast<std::int64_t>(call.attribute("window"));
  shape.scale = call.attribute("scale");
  shape.u_out = call.out_roundoff();
  shape.u_acc = call.accumulator_roundoff(Primitive::attention);
  const bool rounds = call.arithmetic &&
                      call.arithmetic(Primitive::attention, call.storage).rounds_softmax_weights;
  shape.u_weights = rounds ? unit_roundoff(call.storage) : 0.0;
  shape.lost = std::ldexp(1.0, info(accumulate_dtype(call.storage)).min_exponent);
  shape.underflow = call.underflow();
  const std::int64_t d = shape.head_dim;
  LocalValue value;
  if (kv_heads < 1 || heads % kv_heads != 0 || q.cols() != heads * d || k.cols() != kv_heads * d) {
    value.problem = fmt::format("{} features of q and {} of k are not {} and {} heads of {}",
                                q.cols(), k.cols(), heads, kv_heads, d);
    return value;
  }
  value.y = F64Matrix(q.rows(), q.cols());
  value.budget = F64Matrix(q.rows(), q.cols());
  std::int64_t q_row = 0, k_row = 0;
  for (const Step* step : call.steps) {
    const std::vector<Range> visible = visible_positions(*step, shape.window);
    for (std::size_t s = 0; s < visible.size(); ++s) {
      const StepSequence& part = step->sequences[s];
      const std::int64_t n = visible[s].size();
      for (std::int64_t head = 0; head < heads; ++head) {
        if (!wanted(call.columns, head * d, (head + 1) * d)) continue;
        const std::int64_t kv = head / (heads / kv_heads);
        for (std::int64_t at = 0; at < part.count; at += kQueryBlock) {
          const std::int64_t m = std::min(kQueryBlock, part.count - at);
          judge_block(block(q, q_row + at, m, head * d, d), block(k, k_row, n, kv * d, d),
                      block(v, k_row, n, kv * d, d), part.first + at, visible[s], shape, q_row + at,
                      head * d, value);
        }
      }
      q_row += part.count;
      k_row += n;
    }
  }
  return value;
}

}  // namespace shardcheck
