// SPDX-License-Identifier: Apache-2.0
// A dense row-major matrix: the one data type of the reference. Eigen maps it inside the .cpp files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <span>
#include <vector>

namespace shardcheck::reference {

/// Memory that starts at a multiple of 64 bytes. Eigen's sums group their terms by the alignment of the first one, so
/// without it the same forward pass could give other last bits in another run.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, kAlignment); }
  bool operator==(const AlignedAllocator&) const = default;
};

template <typename T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::int64_t rows, std::int64_t cols)
      : rows_(rows), cols_(cols), values_(static_cast<std::size_t>(rows * cols)) {}
  /// A copy of rows * cols values, row-major.
  Matrix(std::int64_t rows, std::int64_t cols, std::span<const T> values)
      : rows_(rows), cols_(cols), values_(values.begin(), values.end()) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  T& operator()(std::int64_t row, std::int64_t col) {
    return values_[static_cast<std::size_t>(row * cols_ + col)];
  }
  const T& operator()(std::int64_t row, std::int64_t col) const {
    return values_[static_cast<std::size_t>(row * cols_ + col)];
  }
  std::span<T> row(std::int64_t r) { return {data() + r * cols_, static_cast<std::size_t>(cols_)}; }
  std::span<const T> row(std::int64_t r) const {
    return {data() + r * cols_, static_cast<std::size_t>(cols_)};
  }
  std::span<const T> values() const { return values_; }

 private:
  std::int64_t rows_ = 0, cols_ = 0;
  std::vector<T, AlignedAllocator<T>> values_;
};

/// Columns [begin, begin + count) as a matrix of their own: a head of q, a section of a fused projection.
template <typename T>
Matrix<T> columns(const Matrix<T>& x, std::int64_t begin, std::int64_t count) {
  Matrix<T> part(x.rows(), count);
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    const std::span<const T> row = x.row(m).subspan(static_cast<std::size_t>(begin),
                                                    static_cast<std::size_t>(count));
    std::copy(row.begin(), row.end(), part.row(m).begin());
  }
  return part;
}

/// Gives rows [begin, end) of a weight, row-major: a weight is never held whole in T when the checkpoint is in another
/// dtype.
template <typename T>
using WeightRows = std::function<void(std::int64_t begin, std::int64_t end, std::span<T> out)>;

}  // namespace shardcheck::reference
