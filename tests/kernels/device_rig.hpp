// SPDX-License-Identifier: Apache-2.0
// What every kernel test needs: a device with a stream, inputs that vary, views in awkward places, and the statistic
// that judges a result against its f64 twin. The tests are the same for every kind of device; each binary says which
// one it runs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/twin/answer.hpp"
#include "model/dtype.hpp"
#include "model/error.hpp"
#include "model/host_tensor.hpp"

namespace shardcheck {

/// The device under test. Defined once in every binary that these tests are compiled into.
std::unique_ptr<Device> make_test_device();
/// True where a kernel's every thread costs about a microsecond, so that shapes only just pass the tiles' borders.
bool small_shapes();

using twin::Matrix;

inline constexpr DType kStorageDTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

/// How a matrix lies in memory. `inset`: inside a larger matrix, at an odd offset. `padded`: with gaps between rows,
/// all of which begin at a multiple of 16 elements. `transposed`: col_stride != 1.
enum class Layout { dense, inset, padded, transposed };
inline constexpr Layout kLayouts[] = {Layout::dense, Layout::inset, Layout::padded, Layout::transposed};

class DeviceRig {
 public:
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Arithmetic arithmetic(Primitive primitive, DType storage) const {
    return device_->arithmetic(primitive, storage);
  }

  /// Uninitialised memory in this layout, all NaN, neighbours included.
  Tensor make(DType dtype, std::int64_t rows, std::int64_t cols, Layout layout = Layout::dense) {
    const bool turned = layout == Layout::transposed, padded = layout == Layout::padded;
    const std::int64_t margin = layout == Layout::dense ? 0 : padded ? 16 : 3;
    std::int64_t height = rows + 2 * margin, width = cols + 2 * margin;
    if (turned) std::swap(height, width);
    if (padded) width += (16 - width % 16) % 16;
    Tensor whole = device_->allocate(*stream_, dtype, height, width);
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

  Tensor put_ids(const std::vector<std::int64_t>& ids, Layout layout = Layout::dense) {
    HostTensor host(DType::i64, {1, static_cast<std::int64_t>(ids.size())});
    std::ranges::copy(ids, host.as_mutable<std::int64_t>().begin());
    const Tensor tensor = make(DType::i64, 1, host.cols(), layout);
    device_->upload(*stream_, host, tensor);
    return tensor;
  }

  HostTensor get(const Tensor& tensor) { return device_->to_host(*stream_, tensor); }

  std::uint64_t hash(const Tensor& tensor) {
    const Tensor slots = device_->allocate(*stream_, DType::u64, 1, 2);
    device_->hash(*stream_, tensor, slots, 1);
    return get(slots).as<std::uint64_t>()[1];
  }

 private:
  std::unique_ptr<Device> device_ = make_test_device();
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

inline Matrix random_matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                            double scale = 1) {
  Words words(seed);
  Matrix matrix{rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))};
  for (double& value : matrix.values) value = scale * words.value();
  matrix.values = round_to(dtype, {rows, cols}, matrix.values).to_f64();
  return matrix;
}

inline Matrix integer_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                             std::int64_t largest) {
  Words words(seed);
  Matrix matrix{rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))};
  for (double& value : matrix.values) value = static_cast<double>(words.integer(-largest, largest));
  return matrix;
}

/// The limits of the local check, with the measured statistics for the reader.
inline testing::AssertionResult within_budget(const HostTensor& got, const twin::Answer& want) {
  const twin::Distance d = twin::distance(got.to_f64(), want);
  const bool within = twin::within_limits(d, got.dtype(), want.value.size());
  return (within ? testing::AssertionSuccess() : testing::AssertionFailure())
         << "A = " << d.worst << ", B = " << d.root_mean_square;
}

/// The bits of a twin's exact answer.
inline HostTensor exactly(DType dtype, const Matrix& matrix) {
  return twin::rounded(dtype, matrix);
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
