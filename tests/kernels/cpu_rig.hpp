// SPDX-License-Identifier: Apache-2.0
// What every kernel test needs: a cpu device with a stream, inputs that vary, views in awkward places, and the
// statistic that judges a result against its f64 twin.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.hpp"
#include "kernels/device.hpp"
#include "model/dtype.hpp"
#include "model/error.hpp"
#include "model/host_tensor.hpp"

namespace shardcheck {

inline constexpr DType kStorageDTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

/// How a matrix lies in memory. `inset`: inside a larger matrix, at an odd offset. `transposed`: col_stride != 1.
enum class Layout { dense, inset, transposed };
inline constexpr Layout kLayouts[] = {Layout::dense, Layout::inset, Layout::transposed};

/// A matrix of values already rounded to its dtype, and the values in f64.
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;
  double operator()(std::int64_t row, std::int64_t col) const {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
};

class CpuRig {
 public:
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

  /// Uninitialised memory in this layout, all NaN, neighbours included.
  Tensor make(DType dtype, std::int64_t rows, std::int64_t cols, Layout layout = Layout::dense) {
    const bool turned = layout == Layout::transposed;
    const std::int64_t margin = layout == Layout::dense ? 0 : 3;
    Tensor whole = turned ? device_->allocate(dtype, cols + 2 * margin, rows + 2 * margin)
                          : device_->allocate(dtype, rows + 2 * margin, cols + 2 * margin);
    device_->poison(*stream_, whole);
    if (turned) {
      std::swap(whole.rows, whole.cols);
      std::swap(whole.row_stride, whole.col_stride);
    }
    return whole.row_range(margin, margin + rows).col_range(margin, margin + cols);
  }

  Tensor put(DType dtype, const Matrix& matrix, Layout layout = Layout::dense) {
    const Tensor tensor = make(dtype, matrix.rows, matrix.cols, layout);
    device_->upload(*stream_, round_to(dtype, {matrix.rows, matrix.cols}, matrix.values), tensor);
    return tensor;
  }

  Tensor put_ids(const std::vector<std::int64_t>& ids) {
    HostTensor host(DType::i64, {1, static_cast<std::int64_t>(ids.size())});
    std::ranges::copy(ids, host.as_mutable<std::int64_t>().begin());
    return device_->adopt(*stream_, host);
  }

  HostTensor get(const Tensor& tensor) { return device_->to_host(*stream_, tensor); }

  std::uint64_t hash(const Tensor& tensor) {
    const Tensor slots = device_->allocate(DType::u64, 1, 2);
    device_->hash(*stream_, tensor, slots, 1);
    return get(slots).as<std::uint64_t>()[1];
  }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream();
};

/// A sequence of well mixed 64-bit words (the finaliser of a Weyl sequence), the same on every run.
class Words {
 public:
  explicit Words(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In (-1, 1), with a few outliers of sixteen times that size.
  double value() {
    const double v = static_cast<double>(static_cast<std::int64_t>(next())) * 0x1p-63;
    return next() % 32 == 0 ? 16 * v : v;
  }
  std::int64_t integer(std::int64_t lo, std::int64_t hi) {
    return lo + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(hi - lo + 1));
  }

 private:
  std::uint64_t state_;
};

inline Matrix random_matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1) {
  Words words(seed);
  Matrix matrix{rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))};
  for (double& value : matrix.values) value = scale * words.value();
  matrix.values = round_to(dtype, {rows, cols}, matrix.values).to_f64();
  return matrix;
}

inline Matrix integer_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed, std::int64_t largest) {
  Words words(seed);
  Matrix matrix{rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))};
  for (double& value : matrix.values) value = static_cast<double>(words.integer(-largest, largest));
  return matrix;
}

/// A twin's answer: the value in f64 and the error that one correct evaluation typically has.
struct Twin {
  std::vector<double> value, budget;
  void add(double v, double b) {
    value.push_back(v);
    budget.push_back(b);
  }
};

/// Largest |e| / b. No error counts 0, an error without budget is infinite, and so is NaN.
inline double worst_ratio(const std::vector<double>& got, const Twin& twin) {
  double worst = got.size() == twin.value.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(got.size(), twin.value.size()); ++i) {
    const double error = std::abs(got[i] - twin.value[i]);
    const double ratio = error == 0 ? 0 : error / twin.budget[i];
    worst = ratio <= worst ? worst : std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
  }
  return worst;
}

/// The limits of the local check: A <= 8 (4 for bf16, whose one rounding rules), B <= 0.7 from 256 elements on.
inline testing::AssertionResult within_budget(const HostTensor& got, const Twin& twin) {
  const std::vector<double> values = got.to_f64();
  const double a = worst_ratio(values, twin);
  if (!(a <= (got.dtype() == DType::bf16 ? 4 : 8))) return testing::AssertionFailure() << "A = " << a;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = values[i] - twin.value[i];
    squares += error == 0 ? 0 : error * error / (twin.budget[i] * twin.budget[i]);
  }
  const double b = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(values.size(), 1)));
  if (values.size() >= 256 && !(b <= 0.7)) return testing::AssertionFailure() << "B = " << b;
  return testing::AssertionSuccess() << "A = " << a << ", B = " << b;
}

/// The bits of a twin's exact answer.
inline HostTensor exactly(DType dtype, const Matrix& matrix) {
  return round_to(dtype, {matrix.rows, matrix.cols}, matrix.values);
}

/// A copy with one bit of one element changed.
inline HostTensor with_flipped_bit(const HostTensor& tensor, std::int64_t element, int bit) {
  HostTensor changed(tensor.dtype(), tensor.shape());
  std::copy_n(tensor.data(), tensor.bytes(), changed.mutable_data());
  const auto size = static_cast<std::int64_t>(element_size(tensor.dtype()));
  changed.mutable_data()[element * size + bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  return changed;
}

inline std::string text(DType dtype) { return std::string(name(dtype)); }

}  // namespace shardcheck
