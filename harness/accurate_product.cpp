// SPDX-License-Identifier: Apache-2.0
#include "harness/accurate_product.hpp"

#include <cmath>
#include <cstring>

#ifdef __FMA__
#include <immintrin.h>
#endif

namespace shardcheck {
namespace {

// Four sums side by side. Compilers don't vectorise the compensated loop by themselves.
using Lanes = double __attribute__((vector_size(32)));
constexpr int kLanes = 4;

Lanes load(const double* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

/// a b - product, exactly, where product is a b rounded.
Lanes product_error(Lanes a, Lanes b, Lanes product) {
#ifdef __FMA__
  return _mm256_fmsub_pd(a, b, product);
#else
  Lanes error;
  for (int lane = 0; lane < kLanes; ++lane) error[lane] = std::fma(a[lane], b[lane], -product[lane]);
  return error;
#endif
}

/// sum + error = what was added so far, with error below the last bit of sum.
struct Compensated {
  double sum = 0.0, error = 0.0;

  void add(double term) {
    const double next = sum + term;
    const double rest = next - sum;
    error += (sum - (next - rest)) + (term - rest);
    sum = next;
  }
};

double accurate_dot(const double* x, const double* w, std::int64_t terms) {
  // Two independent sets of lanes hide the latency of the additions.
  Lanes sum[2] = {}, error[2] = {};
  std::int64_t k = 0;
  for (; k + 2 * kLanes <= terms; k += 2 * kLanes) {
    for (int set = 0; set < 2; ++set) {
      const Lanes a = load(x + k + set * kLanes), b = load(w + k + set * kLanes);
      const Lanes product = a * b;
      const Lanes next = sum[set] + product;
      const Lanes rest = next - sum[set];
      error[set] += ((sum[set] - (next - rest)) + (product - rest)) + product_error(a, b, product);
      sum[set] = next;
    }
  }
  Compensated total;
  double tail = 0.0;
  for (; k < terms; ++k) {
    const double product = x[k] * w[k];
    tail += std::fma(x[k], w[k], -product);
    total.add(product);
  }
  for (int set = 0; set < 2; ++set) {
    for (int lane = 0; lane < kLanes; ++lane) {
      total.add(sum[set][lane]);
      tail += error[set][lane];
    }
  }
  // An overflow leaves inf - inf in the error terms: the plain sum says which it was.
  return std::isfinite(total.sum) ? total.sum + (total.error + tail) : total.sum;
}

}  // namespace

void accurate_product(const double* x, std::int64_t x_stride, std::int64_t rows, const double* w, std::int64_t w_stride,
                      std::int64_t cols, std::int64_t terms, double* y, std::int64_t y_stride) {
  for (std::int64_t n = 0; n < cols; ++n) {
    for (std::int64_t m = 0; m < rows; ++m) {
      y[m * y_stride + n] = accurate_dot(x + m * x_stride, w + n * w_stride, terms);
    }
  }
}

}  // namespace shardcheck
