// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cpu_rig.hpp"

namespace shardcheck {
namespace {

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {2, 31}, {5, 64}, {4, 576}, {2, 1037}};
constexpr double kEps = 1e-5;

/// Budget: (u_out + (sqrt(D) / 2 + 4) u_acc) |y|.
Twin rms_norm_twin(const Matrix& x, const Matrix& w, double eps, DType dtype) {
  const double u_acc = unit_roundoff(accumulate_dtype(dtype));
  const auto d = static_cast<double>(x.cols);
  Twin twin;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    double squares = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) squares += x(m, i) * x(m, i);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const double y = x(m, i) / std::sqrt(squares / d + eps) * w(0, i);
      twin.add(y, (unit_roundoff(dtype) + (std::sqrt(d) / 2 + 4) * u_acc) * std::abs(y) + half_min_subnormal(dtype));
    }
  }
  return twin;
}

/// Budget: u_out |y| + u_acc (|g| / sd (rms(x) + (sqrt(D) / 2 + 4) |x - mean|) + |beta|).
Twin layer_norm_twin(const Matrix& x, const Matrix& w, const Matrix& b, double eps, DType dtype) {
  const double u_acc = unit_roundoff(accumulate_dtype(dtype));
  const auto d = static_cast<double>(x.cols);
  Twin twin;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    double sum = 0, squares = 0, centred = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) sum += x(m, i), squares += x(m, i) * x(m, i);
    const double mean = sum / d;
    for (std::int64_t i = 0; i < x.cols; ++i) centred += (x(m, i) - mean) * (x(m, i) - mean);
    const double sd = std::sqrt(centred / d + eps);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const double y = (x(m, i) - mean) / sd * w(0, i) + b(0, i);
      const double spread = std::sqrt(squares / d) + (std::sqrt(d) / 2 + 4) * std::abs(x(m, i) - mean);
      twin.add(y, unit_roundoff(dtype) * std::abs(y) + u_acc * (std::abs(w(0, i)) / sd * spread + std::abs(b(0, i))) +
                      half_min_subnormal(dtype));
    }
  }
  return twin;
}

class NormTest : public testing::TestWithParam<DType> {
 protected:
  HostTensor rms(const Matrix& x, const Matrix& w, double eps, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(GetParam(), x.rows, x.cols, layout);
    rig_.device().rms_norm(rig_.stream(), rig_.put(GetParam(), x, layout), rig_.put(GetParam(), w), eps, out);
    return rig_.get(out);
  }
  HostTensor layer(const Matrix& x, const Matrix& w, const Matrix& b, double eps, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(GetParam(), x.rows, x.cols, layout);
    rig_.device().layer_norm(rig_.stream(), rig_.put(GetParam(), x, layout), rig_.put(GetParam(), w),
                             rig_.put(GetParam(), b), eps, out);
    return rig_.get(out);
  }
  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return random_matrix(GetParam(), rows, cols, seed);
  }

  CpuRig rig_;
};

TEST_P(NormTest, RmsNormAgreesWithTheTwin) {
  for (const Shape& s : kShapes) {
    const Matrix x = random(s.rows, s.cols, 1), w = random(1, s.cols, 2);
    const Twin twin = rms_norm_twin(x, w, kEps, GetParam());
    for (const Layout layout : kLayouts) EXPECT_TRUE(within_budget(rms(x, w, kEps, layout), twin)) << s.cols;
    EXPECT_TRUE(rms(x, w, kEps, Layout::inset).bitwise_equal(rms(x, w, kEps)));
    EXPECT_TRUE(rms(x, w, kEps, Layout::transposed).bitwise_equal(rms(x, w, kEps)));
  }
}

TEST_P(NormTest, LayerNormAgreesWithTheTwin) {
  for (const Shape& s : kShapes) {
    const Matrix x = random(s.rows, s.cols, 1), w = random(1, s.cols, 2), b = random(1, s.cols, 3);
    const Twin twin = layer_norm_twin(x, w, b, kEps, GetParam());
    for (const Layout layout : kLayouts) EXPECT_TRUE(within_budget(layer(x, w, b, kEps, layout), twin)) << s.cols;
    EXPECT_TRUE(layer(x, w, b, kEps, Layout::inset).bitwise_equal(layer(x, w, b, kEps)));
  }
}

TEST_P(NormTest, ARowsBitsDontDependOnTheOthers) {
  const Matrix x = random(7, 100, 1), w = random(1, 100, 2), b = random(1, 100, 3);
  const Tensor dx = rig_.put(GetParam(), x), dw = rig_.put(GetParam(), w), db = rig_.put(GetParam(), b);
  const Tensor whole = rig_.make(GetParam(), 7, 100), one = rig_.make(GetParam(), 1, 100);
  rig_.device().rms_norm(rig_.stream(), dx, dw, kEps, whole);
  rig_.device().rms_norm(rig_.stream(), dx.row_range(4, 5), dw, kEps, one);
  EXPECT_TRUE(rig_.get(one).bitwise_equal(rig_.get(whole.row_range(4, 5))));
  rig_.device().layer_norm(rig_.stream(), dx, dw, db, kEps, whole);
  rig_.device().layer_norm(rig_.stream(), dx.row_range(4, 5), dw, db, kEps, one);
  EXPECT_TRUE(rig_.get(one).bitwise_equal(rig_.get(whole.row_range(4, 5))));
}

TEST_P(NormTest, PlantedFaultsExceedTheBudget) {
  const Matrix x = random(5, 64, 1), w = random(1, 64, 2), b = random(1, 64, 3);
  const Twin rms_twin = rms_norm_twin(x, w, kEps, GetParam());
  const Twin layer_twin = layer_norm_twin(x, w, b, kEps, GetParam());
  EXPECT_FALSE(within_budget(rms(x, w, 0.1), rms_twin));
  EXPECT_FALSE(within_budget(layer(x, w, b, 0.1), layer_twin));
  EXPECT_FALSE(within_budget(layer(x, w, random(1, 64, 4), kEps), layer_twin));
  Matrix scaled = w;
  scaled.values[9] *= 1.0625;
  EXPECT_FALSE(within_budget(rms(x, scaled, kEps), rms_twin));
  Matrix stale = x;
  stale.values[70] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(within_budget(rms(stale, w, kEps), rms_twin));
}

TEST_P(NormTest, ExactOnPowersOfTwo) {
  // Rows of +-2^e: mean square 4^e, so the norm is the sign, exactly; LayerNorm the same where signs balance.
  Matrix x{4, 16, {}}, want{4, 16, {}};
  Words words(1);
  for (int m = 0; m < 4; ++m) {
    const double size = std::exp2(m - 2);
    for (int i = 0; i < 16; i += 2) {
      const double sign = words.next() % 2 == 0 ? 1 : -1;
      for (const double v : {sign, -sign}) x.values.push_back(v * size), want.values.push_back(v);
    }
  }
  const Matrix one{1, 16, std::vector<double>(16, 1.0)}, zero{1, 16, std::vector<double>(16, 0.0)};
  EXPECT_TRUE(rms(x, one, 0).bitwise_equal(exactly(GetParam(), want)));
  EXPECT_TRUE(layer(x, one, zero, 0).bitwise_equal(exactly(GetParam(), want)));
}

/// Budget: u_out |y| + 2 u_acc (|a cos| + |b sin|).
Twin rope_twin(const Matrix& x, const Matrix& cos, const Matrix& sin, std::int64_t d, RopeConvention convention,
               DType dtype) {
  const double u_acc = unit_roundoff(accumulate_dtype(dtype));
  Twin twin;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const std::int64_t in_head = i % d, head = i - in_head;
      const bool half = convention == RopeConvention::half_split;
      const std::int64_t pair = half ? in_head % (d / 2) : in_head / 2;
      const bool second = half ? in_head >= d / 2 : in_head % 2 == 1;
      const std::int64_t partner = head + (half ? pair + (second ? 0 : d / 2) : 2 * pair + (second ? 0 : 1));
      const double a = x(m, i) * cos(m, pair), b = x(m, partner) * sin(m, pair);
      const double y = second ? a + b : a - b;
      twin.add(y, unit_roundoff(dtype) * std::abs(y) + 2 * u_acc * (std::abs(a) + std::abs(b)) +
                      half_min_subnormal(dtype));
    }
  }
  return twin;
}

TEST_P(NormTest, RopeAgreesWithTheTwinAndTellsConventionsApart) {
  const DType table = accumulate_dtype(GetParam());
  for (const std::int64_t d : {2, 6, 64}) {
    const Matrix x = random(5, 3 * d, 1);
    Matrix cos{5, d / 2, {}}, sin{5, d / 2, {}};
    for (std::int64_t i = 0; i < 5 * d / 2; ++i) {
      cos.values.push_back(std::cos(0.7 * static_cast<double>(i)));
      sin.values.push_back(std::sin(0.7 * static_cast<double>(i)));
    }
    const Tensor c = rig_.put(table, cos, Layout::inset), s = rig_.put(table, sin);
    cos.values = rig_.get(c).to_f64(), sin.values = rig_.get(s).to_f64();
    for (const RopeConvention convention : {RopeConvention::half_split, RopeConvention::interleaved}) {
      const Twin twin = rope_twin(x, cos, sin, d, convention, GetParam());
      for (const Layout layout : kLayouts) {
        const Tensor out = rig_.make(GetParam(), 5, 3 * d, layout);
        rig_.device().rope(rig_.stream(), rig_.put(GetParam(), x, layout), c, s, d, convention, out);
        EXPECT_TRUE(within_budget(rig_.get(out), twin));
      }
      const Tensor out = rig_.make(GetParam(), 5, 3 * d);
      const auto other = convention == RopeConvention::half_split ? RopeConvention::interleaved
                                                                  : RopeConvention::half_split;
      rig_.device().rope(rig_.stream(), rig_.put(GetParam(), x), c, s, d, other, out);
      EXPECT_EQ(bool{within_budget(rig_.get(out), twin)}, d == 2);  // with one pair a head they are the same
    }
  }
}

TEST_P(NormTest, EmptyExtentsAreLegal) {
  const Matrix none{0, 8, {}}, weight = random(1, 8, 1);
  EXPECT_EQ(rms(none, weight, kEps).elements(), 0);
  EXPECT_EQ(layer(Matrix{3, 0, {}}, Matrix{1, 0, {}}, Matrix{1, 0, {}}, kEps).elements(), 0);
}

INSTANTIATE_TEST_SUITE_P(Storage, NormTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

}  // namespace
}  // namespace shardcheck
