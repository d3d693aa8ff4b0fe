// SPDX-License-Identifier: Apache-2.0
// RMSNorm of rows that several ranks hold in parts.
#include "kernels/twin/rms_parts.hpp"

#include "kernels/twin/rms_norm.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

// Around the lanes, the warps and the 16-byte packs of a row; one row that a block goes through several times.
constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1},   {3, 7},    {2, 31},  {5, 64},
                                                             {4, 576}, {2, 1037}, {1, 4100}};
constexpr double kEps = 1e-5;

class RmsPartsTest : public testing::TestWithParam<DType> {
 protected:
  DType wide() const { return accumulate_dtype(GetParam()); }
  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1) {
    return random_matrix(GetParam(), rows, cols, seed, scale);
  }

  HostTensor squares(const Matrix& x, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(wide(), x.rows, 1, layout);
    rig_.device().square_sum(rig_.stream(), rig_.put(GetParam(), x, layout), out);
    return rig_.get(out);
  }
  twin::Answer squares_twin(const Matrix& x) {
    return twin::square_sum(x, rig_.arithmetic(Primitive::square_sum, GetParam()));
  }

  HostTensor apply(const Matrix& x, const Matrix& w, const Matrix& s, std::int64_t features,
                   Layout layout = Layout::dense, double eps = kEps) {
    return apply_to(GetParam(), x, w, s, features, layout, eps);
  }
  HostTensor apply_to(DType out_dtype, const Matrix& x, const Matrix& w, const Matrix& s,
                      std::int64_t features, Layout layout = Layout::dense, double eps = kEps) {
    const Tensor out = rig_.make(out_dtype, x.rows, x.cols, layout);
    rig_.device().rms_apply(rig_.stream(), rig_.put(GetParam(), x, layout), rig_.put(GetParam(), w),
                            rig_.put(wide(), s, layout), features, eps, out);
    return rig_.get(out);
  }
  twin::Answer apply_twin(const Matrix& x, const Matrix& w, const Matrix& s, std::int64_t features,
                          DType out) {
    return twin::rms_apply(x, w, s, static_cast<double>(features), kEps, out,
                           rig_.arithmetic(Primitive::rms_apply, GetParam()));
  }
  /// Sums of squares as a rank may get them.
  Matrix sums(std::int64_t rows, std::uint64_t seed) {
    Matrix s = random_matrix(wide(), rows, 1, seed, 30);
    for (double& value : s.values) value = std::abs(value);
    return s;
  }

  DeviceRig rig_;
};

/// Columns [begin, end).
Matrix columns(const Matrix& x, std::int64_t begin, std::int64_t end) {
  Matrix part{x.rows, end - begin, {}};
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t i = begin; i < end; ++i) part.values.push_back(x(m, i));
  }
  return part;
}

TEST_P(RmsPartsTest, SumsOfSquaresAgreeWithTheTwin) {
  for (const auto& [rows, cols] : kShapes) {
    const Matrix x = random(rows, cols, 1);
    const HostTensor dense = squares(x);
    EXPECT_EQ(dense.dtype(), wide());
    EXPECT_TRUE(within_budget(dense, squares_twin(x))) << cols;
    for (const Layout layout : kLayouts)
      EXPECT_TRUE(squares(x, layout).bitwise_equal(dense)) << cols;
  }
}

TEST_P(RmsPartsTest, SmallValuesKeepTheirSquares) {
  // 2^-10 squared is below what fp16 can tell from 0.
  const Matrix x = random(3, 40, 5, 0x1p-10);
  const HostTensor got = squares(x);
  EXPECT_TRUE(within_budget(got, squares_twin(x)));
  for (const double value : got.to_f64()) EXPECT_GT(value, 0);
}

TEST_P(RmsPartsTest, RmsApplyAgreesWithTheTwin) {
  for (const auto& [rows, cols] : kShapes) {
    const Matrix x = random(rows, cols, 1), w = random(1, cols, 2), s = sums(rows, 3);
    const std::int64_t features = 3 * cols + 1;
    const HostTensor dense = apply(x, w, s, features);
    EXPECT_TRUE(within_budget(dense, apply_twin(x, w, s, features, GetParam()))) << cols;
    for (const Layout layout : kLayouts)
      EXPECT_TRUE(apply(x, w, s, features, layout).bitwise_equal(dense)) << cols;
    EXPECT_TRUE(within_budget(apply_to(wide(), x, w, s, features), apply_twin(x, w, s, features, wide())))
        << cols;
  }
}

TEST_P(RmsPartsTest, OneWholePartHasTheBitsOfRmsNorm) {
  for (const auto& [rows, cols] : kShapes) {
    const Matrix x = random(rows, cols, 1), w = random(1, cols, 2);
    const Tensor dx = rig_.put(GetParam(), x), dw = rig_.put(GetParam(), w);
    const Tensor s = rig_.make(wide(), rows, 1), got = rig_.make(GetParam(), rows, cols),
                 want = rig_.make(GetParam(), rows, cols);
    rig_.device().square_sum(rig_.stream(), dx, s);
    rig_.device().rms_apply(rig_.stream(), dx, dw, s, cols, kEps, got);
    rig_.device().rms_norm(rig_.stream(), dx, dw, kEps, want);
    EXPECT_TRUE(rig_.get(got).bitwise_equal(rig_.get(want))) << cols;
  }
}

TEST_P(RmsPartsTest, PartsAddUpToTheNormOfTheWhole) {
  const Matrix x = random(4, 73, 1), w = random(1, 73, 2);
  const twin::Answer want = twin::rms_norm(x, w, kEps, GetParam(),
                                           rig_.arithmetic(Primitive::rms_norm, GetParam()));
  const std::pair<std::int64_t, std::int64_t> parts[] = {{0, 32}, {32, 33}, {33, 33}, {33, 73}};
  std::vector<Tensor> terms;
  for (const auto& [begin, end] : parts) {
    terms.push_back(rig_.make(wide(), 4, 1));
    rig_.device().square_sum(rig_.stream(), rig_.put(GetParam(), columns(x, begin, end)), terms.back());
  }
  const Tensor sum = rig_.make(wide(), 4, 1);
  rig_.device().reduce_n(rig_.stream(), terms, {}, 0, 4, sum);
  const Tensor out = rig_.make(GetParam(), 4, 73), wrong = rig_.make(GetParam(), 4, 73),
               twice = rig_.make(wide(), 4, 1);
  rig_.device().add(rig_.stream(), sum, terms[1], twice);
  for (const auto& [begin, end] : parts) {
    const Tensor dx = rig_.put(GetParam(), columns(x, begin, end));
    const Tensor dw = rig_.put(GetParam(), columns(w, begin, end));
    rig_.device().rms_apply(rig_.stream(), dx, dw, sum, 73, kEps, out.col_range(begin, end));
    // Planted: the divisor of the part.
    rig_.device().rms_apply(rig_.stream(), dx, dw, sum, std::max<std::int64_t>(end - begin, 1),
                            kEps, wrong.col_range(begin, end));
  }
  EXPECT_TRUE(within_budget(rig_.get(out), want));
  EXPECT_FALSE(within_budget(rig_.get(wrong), want));
  // Planted: one part's statistic, or one part counted twice, in place of the sum.
  const Tensor dx = rig_.put(GetParam(), x), dw = rig_.put(GetParam(), w);
  for (const Tensor& statistic : {terms[0], twice}) {
    rig_.device().rms_apply(rig_.stream(), dx, dw, statistic, 73, kEps, wrong);
    EXPECT_FALSE(within_budget(rig_.get(wrong), want));
  }
}

TEST_P(RmsPartsTest, PlantedFaultsExceedTheBudget) {
  const Matrix x = random(5, 64, 1), w = random(1, 64, 2), s = sums(5, 3);
  const twin::Answer right = apply_twin(x, w, s, 128, GetParam());
  EXPECT_TRUE(within_budget(apply(x, w, s, 128), right));
  EXPECT_FALSE(within_budget(apply(x, w, s, 64), right));
  EXPECT_FALSE(within_budget(apply(x, w, s, 128, Layout::dense, 0.5), right));
  Matrix other = s;
  other.values[2] *= 1.25;
  EXPECT_FALSE(within_budget(apply(x, w, other, 128), right));
  Matrix scaled = w;
  scaled.values[9] *= 1.0625;
  EXPECT_FALSE(within_budget(apply(x, scaled, s, 128), right));
  Matrix stale = x;
  stale.values[70] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(within_budget(apply(stale, w, s, 128), right));
  EXPECT_FALSE(within_budget(squares(stale), squares_twin(x)));
  // A column too few, and a term that is rounded to storage before it is added.
  EXPECT_FALSE(within_budget(squares(columns(x, 0, 63)), squares_twin(x)));
  if (element_size(GetParam()) == 2) {
    Matrix rounded = x;
    for (double& value : rounded.values) value = twin::rounded(GetParam(), value * value);
    Matrix sum{5, 1, {}};
    for (std::int64_t m = 0; m < 5; ++m) {
      double total = 0;
      for (std::int64_t i = 0; i < 64; ++i) total += rounded(m, i);
      sum.values.push_back(total);
    }
    EXPECT_FALSE(within_budget(exactly(wide(), sum), squares_twin(x)));
  }
}

TEST_P(RmsPartsTest, ARowsBitsDontDependOnTheOthers) {
  const Tensor x = rig_.put(GetParam(), random(7, 100, 1)),
               w = rig_.put(GetParam(), random(1, 100, 2));
  const Tensor whole = rig_.make(wide(), 7, 1), one = rig_.make(wide(), 1, 1);
  rig_.device().square_sum(rig_.stream(), x, whole);
  rig_.device().square_sum(rig_.stream(), x.row_range(4, 5), one);
  EXPECT_TRUE(rig_.get(one).bitwise_equal(rig_.get(whole.row_range(4, 5))));
  const Tensor all = rig_.make(GetParam(), 7, 100), row = rig_.make(GetParam(), 1, 100);
  rig_.device().rms_apply(rig_.stream(), x, w, whole, 200, kEps, all);
  rig_.device().rms_apply(rig_.stream(), x.row_range(4, 5), w, one, 200, kEps, row);
  EXPECT_TRUE(rig_.get(row).bitwise_equal(rig_.get(all.row_range(4, 5))));
}

TEST_P(RmsPartsTest, MoreRowsThanOneGridHolds) {
  const std::int64_t rows = small_shapes() ? 200 : 66000;
  const Matrix x = random(rows, 5, 1), w = random(1, 5, 2), s = sums(rows, 3);
  EXPECT_TRUE(within_budget(squares(x), squares_twin(x)));
  EXPECT_TRUE(within_budget(apply(x, w, s, 9), apply_twin(x, w, s, 9, GetParam())));
}

TEST_P(RmsPartsTest, EmptyExtentsAreLegal) {
  EXPECT_EQ(squares(Matrix{0, 8, {}}).elements(), 0);
  EXPECT_EQ(squares(Matrix{3, 0, {}}).to_f64(), std::vector<double>(3, 0.0));
  EXPECT_EQ(apply(Matrix{3, 0, {}}, Matrix{1, 0, {}}, sums(3, 1), 8).elements(), 0);
  EXPECT_EQ(apply(Matrix{0, 4, {}}, random(1, 4, 1), Matrix{0, 1, {}}, 8).elements(), 0);
}

TEST_P(RmsPartsTest, ExactOnPowersOfTwo) {
  // Rows of +-2^e: the sum of squares is n 4^e and the norm the sign, exactly.
  Matrix x{4, 16, {}}, want{4, 16, {}}, sum{4, 1, {}};
  Words words(1);
  for (int m = 0; m < 4; ++m) {
    const double size = std::exp2(m - 2);
    for (int i = 0; i < 16; ++i) {
      const double sign = words.next() % 2 == 0 ? 1 : -1;
      x.values.push_back(sign * size), want.values.push_back(sign);
    }
    sum.values.push_back(16 * size * size);
  }
  const Matrix one{1, 16, std::vector<double>(16, 1.0)};
  EXPECT_TRUE(squares(x).bitwise_equal(exactly(wide(), sum)));
  EXPECT_TRUE(apply(x, one, sum, 16, Layout::dense, 0).bitwise_equal(exactly(GetParam(), want)));
}

INSTANTIATE_TEST_SUITE_P(Storage, RmsPartsTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

}  // namespace
}  // namespace shardcheck
