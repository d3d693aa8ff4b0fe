// SPDX-License-Identifier: Apache-2.0
#include "harness/judge_linear.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "harness/accurate_product.hpp"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace shardcheck {
namespace {

template <typename T>
using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::int64_t kBlockElements = std::int64_t{1} << 18;  // of W at a time: 2 MB in f64
constexpr std::int64_t kBatchBytes = std::int64_t{256} << 20;  // of inputs and products held at once

// The norm q needs three digits, so it is computed in f32 from values scaled to at most 1. Their squares may be
// subnormal; such terms are nothing beside the largest and are flushed, for they would slow the product a hundredfold.
class FlushSubnormals {
 public:
#ifdef __SSE2__
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
#else
  FlushSubnormals() {}
#endif
};

// squares[i] = (values[i] / scale)^2 with scale the largest magnitude, which is returned. NaN and infinity stay.
double scaled_squares(std::span<const double> values, float* squares) {
  double scale = 0.0;
  for (const double v : values) scale = std::abs(v) > scale ? std::abs(v) : scale;
  const double inverse = scale > 0.0 && std::isfinite(scale) ? 1.0 / scale : 1.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto ratio = static_cast<float>(values[i] * (std::isfinite(inverse) ? inverse : 1.0));
    squares[i] = ratio * ratio;
  }
  return std::isfinite(inverse) ? 1.0 / inverse : 1.0;
}

// All inputs that are multiplied with the same columns of W, stacked.
struct Group {
  Ranges columns;
  Rows<double> x;
  Rows<float> x_squares;
  std::vector<double> x_scale;  // per row
  Rows<double> y;               // of the current block of W
  Rows<float> norm;             // q^2 / (x_scale w_scale)^2

  void reserve(std::int64_t rows) {
    x.resize(rows, total(columns));
    x_squares.resize(rows, total(columns));
    x_scale.resize(static_cast<std::size_t>(rows));
  }
  void fill(std::int64_t at, const F64Matrix& whole) {
    for (std::int64_t m = 0; m < whole.rows(); ++m) {
      double* row = x.row(at + m).data();
      std::int64_t filled = 0;
      for (const Range& range : columns) {
        std::copy_n(whole.row(m).begin() + range.begin, range.size(), row + filled);
        filled += range.size();
      }
      x_scale[static_cast<std::size_t>(at + m)] = scaled_squares(
          {row, static_cast<std::size_t>(filled)}, x_squares.row(at + m).data());
    }
  }
};

// Where a part of a request is: its rows of a group.
struct Piece {
  Group* group;
  std::int64_t row;
};

// A block of W's rows, rounded to storage, and its scaled squares.
struct WeightBlock {
  std::int64_t begin = 0;
  Rows<double> w;
  Rows<float> squares;
  std::vector<double> scale;  // per row
  std::vector<double> bias;

  void read(const RoundedWeights& weights, const Module& module, std::int64_t first, std::int64_t end) {
    begin = first;
    w.resize(end - first, module.in);
    squares.resize(end - first, module.in);
    scale.resize(static_cast<std::size_t>(end - first));
    weights.read_rows(module.weight(), first, end, {w.data(), static_cast<std::size_t>(w.size())});
    for (Eigen::Index i = 0; i < w.rows(); ++i) {
      scale[static_cast<std::size_t>(i)] = scaled_squares(
          {w.row(i).data(), static_cast<std::size_t>(w.cols())}, squares.row(i).data());
    }
    bias.assign(static_cast<std::size_t>(end - first), 0.0);
    if (module.has_bias) weights.read_rows(module.bias(), first, end, bias);
  }
};

template <typename T>
void multiply(const Rows<T>& x, const Rows<T>& w, const Ranges& columns, Rows<T>& y) {
  y.resize(x.rows(), w.rows());
  if (columns.empty()) {
    y.setZero();
    return;
  }
  if (columns.size() == 1) {
    y.noalias() = x * w.middleCols(columns[0].begin, columns[0].size()).transpose();
    return;
  }
  Rows<T> gathered(w.rows(), x.cols());
  Eigen::Index at = 0;
  for (const Range& range : columns) {
    gathered.middleCols(at, range.size()) = w.middleCols(range.begin, range.size());
    at += range.size();
  }
  y.noalias() = x * gathered.transpose();
}

// The same in twice f64's precision: a candidate in f64 errs no less than a plain f64 product would.
void multiply_accurately(const Rows<double>& x, const Rows<double>& w, const Ranges& columns,
                         Rows<double>& y) {
  y.setZero(x.rows(), w.rows());
  Rows<double> part(x.rows(), w.rows());
  Eigen::Index at = 0;
  for (const Range& range : columns) {
    accurate_product(x.data() + at, x.cols(), x.rows(), w.data() + range.begin, w.cols(), w.rows(),
                     range.size(), part.data(), part.cols());
    y += part;
    at += range.size();
  }
}

// y, budget of one request for one block of W.                                      both [request rows, block rows]
void judge_block(const ProductRequest& request, const std::vector<Piece>& pieces,
                 const WeightBlock& block, Rows<double>& y, Rows<double>& budget) {
  const Eigen::Index rows = request.rows(), cols = block.w.rows();
  y.setZero(rows, cols);
  budget.setZero(rows, cols);
  std::vector<double> norm(static_cast<std::size_t>(cols)), partial(static_cast<std::size_t>(cols));
  const ProductBudget& unit = request.budget;
  for (Eigen::Index m = 0; m < rows; ++m) {
    double* const y_row = y.row(m).data();
    std::fill(norm.begin(), norm.end(), 0.0);
    std::fill(partial.begin(), partial.end(), 0.0);
    for (const Piece& piece : pieces) {
      const double x_scale = piece.group->x_scale[static_cast<std::size_t>(piece.row + m)];
      const double* const part = piece.group->y.row(piece.row + m).data();
      const float* const squares = piece.group->norm.row(piece.row + m).data();
      for (std::size_t i = 0; i < norm.size(); ++i) {
        const double scale = x_scale * block.scale[i];
        y_row[i] += part[i];
        partial[i] += part[i] * part[i];
        norm[i] += static_cast<double>(squares[i]) * scale * scale;
      }
    }
    if (request.adds_bias) {
      for (std::size_t i = 0; i < norm.size(); ++i) {
        y_row[i] += block.bias[i];
        norm[i] += block.bias[i] * block.bias[i];
      }
    }
    double* const budget_row = budget.row(m).data();
    for (std::size_t i = 0; i < norm.size(); ++i) {
      budget_row[i] = unit.per_result * std::abs(y_row[i]) + unit.per_norm * std::sqrt(norm[i]) +
                      unit.per_partial * std::sqrt(partial[i]) + unit.constant;
    }
  }
}

void judge_batch(const RoundedWeights& weights, const Module& module,
                 std::span<ProductRequest> requests) {
  std::map<std::vector<std::int64_t>, Group> groups;
  std::vector<std::vector<Piece>> pieces(requests.size());
  std::map<Group*, std::int64_t> filled;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    for (const Ranges& part : requests[r].parts) {
      const Ranges columns = normalized(part);
      std::vector<std::int64_t> key;
      for (const Range& range : columns) key.insert(key.end(), {range.begin, range.end});
      Group& group = groups[key];
      group.columns = columns;
      pieces[r].push_back({&group, filled[&group]});
      filled[&group] += requests[r].rows();
    }
  }
  for (auto& [group, rows] : filled) group->reserve(rows);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const F64Matrix whole = requests[r].input.assemble(requests[r].peers);
    for (const Piece& piece : pieces[r]) piece.group->fill(piece.row, whole);
  }

  const std::int64_t step = std::clamp<std::int64_t>(
      kBlockElements / std::max<std::int64_t>(module.in, 1), 64, 512);
  WeightBlock block;
  Rows<double> y, budget;
  for (std::int64_t begin = 0; begin < module.out; begin += step) {
    block.read(weights, module, begin, std::min(begin + step, module.out));
    for (auto& [key, group] : groups) {
      if (weights.storage() == DType::f64) {
        multiply_accurately(group.x, block.w, group.columns, group.y);
      } else {
        multiply(group.x, block.w, group.columns, group.y);
      }
    }
    {
      const FlushSubnormals flush;
      for (auto& [key, group] : groups)
        multiply(group.x_squares, block.squares, group.columns, group.norm);
    }
    for (std::size_t r = 0; r < requests.size(); ++r) {
      judge_block(requests[r], pieces[r], block, y, budget);
      for (Comparison& output : requests[r].outputs) {
        output.compare(begin, y.cols(), y.data(), y.cols(), budget.data(), budget.cols());
      }
    }
  }
}

}  // namespace

ProductBudget product_budget(DType out, std::int64_t terms, const Arithmetic& arithmetic) {
  ProductBudget budget;
  if (terms == 0) return budget;  // an empty sum is exactly 0
  const auto k = static_cast<double>(terms);
  budget.per_result = unit_roundoff(out);
  budget.per_norm = std::sqrt(k) * unit_roundoff(arithmetic.accumulate);
  budget.constant = half_min_subnormal(out);
  if (arithmetic.truncating) {
    // Every block of products ends in one truncation of the running sum, all of the same sign; inside a block addends
    // lose the bits below the accumulator's fraction.
    const int fraction = arithmetic.fraction_bits - 1;
    const double blocks = k / std::max(arithmetic.block_k, 1);
    budget.per_result += blocks * std::ldexp(1.0, -std::min(fraction, 23));
    budget.per_norm += 2.0 * std::ldexp(1.0, -fraction) * std::sqrt(k);
  }
  return budget;
}

void judge_products(const RoundedWeights& weights, const std::string& path,
                    std::vector<ProductRequest>& requests) {
  const Module& module = weights.model().module(path);
  std::size_t begin = 0;
  while (begin < requests.size()) {
    std::int64_t bytes = 0;
    std::size_t end = begin;
    do {
      bytes += requests[end].rows() * (module.in + 512) * 12 *
               static_cast<std::int64_t>(requests[end].parts.size());
      ++end;
    } while (end < requests.size() && bytes < kBatchBytes);
    judge_batch(weights, module, std::span(requests).subspan(begin, end - begin));
    begin = end;
  }
}

}  // namespace shardcheck
