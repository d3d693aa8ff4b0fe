// SPDX-License-Identifier: Apache-2.0
#include "kernels/twin/layer_norm.hpp"
#include "kernels/twin/rms_norm.hpp"
#include "kernels/twin/rope.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

struct Shape {
  std::int64_t rows, cols;
};
// Around the lanes, the warps and the 16-byte packs of a row; one row that a block goes through several times.
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {2, 31}, {5, 64}, {4, 576}, {2, 1037}, {1, 4100}};
constexpr double kEps = 1e-5;

class NormTest : public testing::TestWithParam<DType> {
 protected:
  HostTensor rms(const Matrix& x, const Matrix& w, double eps, Layout layout = Layout::dense) {
    return rms_to(GetParam(), x, w, eps, layout);
  }
  HostTensor rms_to(DType out_dtype, const Matrix& x, const Matrix& w, double eps,
                    Layout layout = Layout::dense) {
    const Tensor out = rig_.make(out_dtype, x.rows, x.cols, layout);
    rig_.device().rms_norm(rig_.stream(), rig_.put(GetParam(), x, layout), rig_.put(GetParam(), w),
                           eps, out);
    return rig_.get(out);
  }
  twin::Answer rms_twin(const Matrix& x, const Matrix& w) {
    return twin::rms_norm(x, w, kEps, GetParam(), rig_.arithmetic(Primitive::rms_norm, GetParam()));
  }
  twin::Answer layer_twin(const Matrix& x, const Matrix& w, const Matrix& b) {
    return twin::layer_norm(x, w, b, kEps, GetParam(),
                            rig_.arithmetic(Primitive::layer_norm, GetParam()));
  }
  HostTensor layer(const Matrix& x, const Matrix& w, const Matrix& b, double eps,
                   Layout layout = Layout::dense) {
    const Tensor out = rig_.make(GetParam(), x.rows, x.cols, layout);
    rig_.device().layer_norm(rig_.stream(), rig_.put(GetParam(), x, layout),
                             rig_.put(GetParam(), w), rig_.put(GetParam(), b), eps, out);
    return rig_.get(out);
  }
  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return random_matrix(GetParam(), rows, cols, seed);
  }

  DeviceRig rig_;
};

TEST_P(NormTest, RmsNormAgreesWithTheTwin) {
  for (const Shape& s : kShapes) {
    const Matrix x = random(s.rows, s.cols, 1), w = random(1, s.cols, 2);
    const HostTensor dense = rms(x, w, kEps);
    EXPECT_TRUE(within_budget(dense, rms_twin(x, w))) << s.cols;
    for (const Layout layout : kLayouts)
      EXPECT_TRUE(rms(x, w, kEps, layout).bitwise_equal(dense)) << s.cols;
    const DType wide = accumulate_dtype(GetParam());
    const twin::Answer unrounded = twin::rms_norm(x, w, kEps, wide,
                                                  rig_.arithmetic(Primitive::rms_norm, GetParam()));
    EXPECT_TRUE(within_budget(rms_to(wide, x, w, kEps), unrounded)) << s.cols;
  }
}

TEST_P(NormTest, LayerNormAgreesWithTheTwin) {
  for (const Shape& s : kShapes) {
    const Matrix x = random(s.rows, s.cols, 1), w = random(1, s.cols, 2), b = random(1, s.cols, 3);
    const HostTensor dense = layer(x, w, b, kEps);
    EXPECT_TRUE(within_budget(dense, layer_twin(x, w, b))) << s.cols;
    for (const Layout layout : kLayouts)
      EXPECT_TRUE(layer(x, w, b, kEps, layout).bitwise_equal(dense)) << s.cols;
  }
}

TEST_P(NormTest, LayerNormKeepsSmallDifferencesFromALargeMean) {
  // mean(x^2) - mean(x)^2 would lose them: two passes are needed. The mean's own rounding is a whole row's error, so
  // only the largest ratio is limited here.
  Matrix x = random(3, 300, 1);
  for (double& v : x.values) v = v / 16 + 4;
  x.values = exactly(GetParam(), x).to_f64();
  const Matrix w = random(1, 300, 2), b = random(1, 300, 3);
  EXPECT_LE(twin::distance(layer(x, w, b, kEps).to_f64(), layer_twin(x, w, b)).worst, 8);
}

TEST_P(NormTest, MoreRowsThanOneGridHolds) {
  const std::int64_t rows = small_shapes() ? 200 : 66000;
  const Matrix x = random(rows, 5, 1), w = random(1, 5, 2);
  EXPECT_TRUE(within_budget(rms(x, w, kEps), rms_twin(x, w)));
}

TEST_P(NormTest, AddRmsNormHasTheBitsOfAddAndThenRmsNorm) {
  for (const Shape& s : kShapes) {
    const Matrix a = random(s.rows, s.cols, 1), b = random(s.rows, s.cols, 2),
                 w = random(1, s.cols, 3);
    for (const Layout layout : kLayouts) {
      const Tensor da = rig_.put(GetParam(), a, layout), db = rig_.put(GetParam(), b),
                   dw = rig_.put(GetParam(), w);
      const Tensor sum = rig_.make(GetParam(), s.rows, s.cols, layout),
                   out = rig_.make(GetParam(), s.rows, s.cols, layout);
      const Tensor want_sum = rig_.make(GetParam(), s.rows, s.cols),
                   want = rig_.make(GetParam(), s.rows, s.cols);
      rig_.device().add_rms_norm(rig_.stream(), da, db, dw, kEps, sum, out);
      rig_.device().add(rig_.stream(), da, db, want_sum);
      rig_.device().rms_norm(rig_.stream(), want_sum, dw, kEps, want);
      EXPECT_TRUE(rig_.get(sum).bitwise_equal(rig_.get(want_sum))) << s.cols;
      EXPECT_TRUE(rig_.get(out).bitwise_equal(rig_.get(want))) << s.cols;
      const Matrix stored{s.rows, s.cols, rig_.get(sum).to_f64()};
      EXPECT_TRUE(within_budget(rig_.get(out), rms_twin(stored, w))) << s.cols;
    }
  }
}

TEST_P(NormTest, ANormOfTheUnroundedSumIsSeen) {
  if (element_size(GetParam()) > 2)
    return;  // the sum is what was accumulated: nothing to tell apart
  const Matrix a = random(5, 64, 1), b = random(5, 64, 2), w = random(1, 64, 3);
  const Tensor sum = rig_.make(DType::f32, 5, 64), wrong = rig_.make(DType::f32, 5, 64),
               rounded = rig_.make(GetParam(), 5, 64);
  rig_.device().add(rig_.stream(), rig_.put(GetParam(), a), rig_.put(GetParam(), b), sum);
  rig_.device().rms_norm(rig_.stream(), sum, rig_.put(DType::f32, w), kEps, wrong);
  rig_.device().cast(rig_.stream(), wrong, rounded);
  const Tensor stored = rig_.make(GetParam(), 5, 64), out = rig_.make(GetParam(), 5, 64);
  rig_.device().add_rms_norm(rig_.stream(), rig_.put(GetParam(), a), rig_.put(GetParam(), b),
                             rig_.put(GetParam(), w), kEps, stored, out);
  EXPECT_FALSE(rig_.get(rounded).bitwise_equal(rig_.get(out)));
}

TEST_P(NormTest, ARowsBitsDontDependOnTheOthers) {
  const Matrix x = random(7, 100, 1), w = random(1, 100, 2), b = random(1, 100, 3);
  const Tensor dx = rig_.put(GetParam(), x), dw = rig_.put(GetParam(), w),
               db = rig_.put(GetParam(), b);
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
  const twin::Answer right_rms = rms_twin(x, w), right_layer = layer_twin(x, w, b);
  EXPECT_FALSE(within_budget(rms(x, w, 0.1), right_rms));
  EXPECT_FALSE(within_budget(layer(x, w, b, 0.1), right_layer));
  EXPECT_FALSE(within_budget(layer(x, w, random(1, 64, 4), kEps), right_layer));
  Matrix scaled = w;
  scaled.values[9] *= 1.0625;
  EXPECT_FALSE(within_budget(rms(x, scaled, kEps), right_rms));
  Matrix stale = x;
  stale.values[70] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(within_budget(rms(stale, w, kEps), right_rms));
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

TEST_P(NormTest, RopeAgreesWithTheTwinAndTellsConventionsApart) {
  const DType table = accumulate_dtype(GetParam());
  const Arithmetic arithmetic = rig_.arithmetic(Primitive::rope, GetParam());
  for (const std::int64_t d : {2, 6, 16, 64}) {
    const Matrix x = random(5, 3 * d, 1);
    Matrix cos{5, d / 2, {}}, sin{5, d / 2, {}};
    for (std::int64_t i = 0; i < 5 * d / 2; ++i) {
      cos.values.push_back(std::cos(0.7 * static_cast<double>(i)));
      sin.values.push_back(std::sin(0.7 * static_cast<double>(i)));
    }
    cos.values = exactly(table, cos).to_f64(), sin.values = exactly(table, sin).to_f64();
    const auto rotate = [&](RopeConvention convention, DType out_dtype, Layout layout) {
      const Tensor out = rig_.make(out_dtype, 5, 3 * d, layout);
      rig_.device().rope(rig_.stream(), rig_.put(GetParam(), x, layout),
                         rig_.put(table, cos, layout), rig_.put(table, sin), d, convention, out);
      return rig_.get(out);
    };
    for (const RopeConvention convention : {RopeConvention::half_split, RopeConvention::interleaved}) {
      const twin::Answer answer = twin::rope(x, cos, sin, convention, GetParam(), arithmetic);
      const HostTensor dense = rotate(convention, GetParam(), Layout::dense);
      EXPECT_TRUE(within_budget(dense, answer)) << d;
      for (const Layout layout : kLayouts) {
        EXPECT_TRUE(rotate(convention, GetParam(), layout).bitwise_equal(dense)) << d;
      }
      const twin::Answer unrounded = twin::rope(x, cos, sin, convention, table, arithmetic);
      EXPECT_TRUE(within_budget(rotate(convention, table, Layout::dense), unrounded)) << d;
      const auto other = convention == RopeConvention::half_split ? RopeConvention::interleaved
                                                                  : RopeConvention::half_split;
      // With one pair a head they are the same.
      EXPECT_EQ(bool{within_budget(rotate(other, GetParam(), Layout::dense), answer)}, d == 2);
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
