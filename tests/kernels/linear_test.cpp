// SPDX-License-Identifier: Apache-2.0
#include "kernels/twin/linear.hpp"

#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

struct Shape {
  std::int64_t m, k, n;
};

// Around the tile (4 x 3), the lanes (4 or 8), the group (12), the weight step (48), the input step (64) and the
// depth of one block (1024 in f32, 512 in f64).
constexpr Shape kShapes[] = {{1, 1, 1},    {2, 7, 5},    {3, 8, 4},     {4, 9, 3},
                             {5, 64, 13},  {6, 576, 49}, {1, 1031, 50}, {7, 2049, 25},
                             {65, 33, 11}, {193, 40, 97}};

class LinearTest : public testing::TestWithParam<DType> {
 protected:
  HostTensor run(const Tensor& x, const Tensor& w, const Tensor* bias, DType out_dtype,
                 Layout layout = Layout::dense) {
    const Tensor out = rig_.make(out_dtype, x.rows, w.rows, layout);
    rig_.device().linear(rig_.stream(), x, w, bias, out);
    return rig_.get(out);
  }

  twin::Answer want(const Matrix& x, const Matrix& w, const Matrix* bias, DType out) {
    return twin::linear(x, w, bias, out, rig_.arithmetic(Primitive::linear, GetParam()));
  }

  DeviceRig rig_;
};

TEST_P(LinearTest, AgreesWithTheTwin) {
  for (const Shape& s : kShapes) {
    const Matrix x = random_matrix(GetParam(), s.m, s.k, 1),
                 w = random_matrix(GetParam(), s.n, s.k, 2);
    const Matrix bias = random_matrix(GetParam(), 1, s.n, 3);
    const Tensor b = rig_.put(GetParam(), bias);
    for (const DType out : {GetParam(), DType::f32}) {
      EXPECT_TRUE(within_budget(run(rig_.put(GetParam(), x), rig_.put(GetParam(), w), nullptr, out),
                                want(x, w, nullptr, out)))
          << s.m << " " << s.k << " " << s.n;
      EXPECT_TRUE(within_budget(run(rig_.put(GetParam(), x), rig_.put(GetParam(), w), &b, out),
                                want(x, w, &bias, out)))
          << s.m << " " << s.k << " " << s.n << " with bias";
    }
  }
}

TEST_P(LinearTest, PlantedFaultsExceedTheBudget) {
  const Matrix x = random_matrix(GetParam(), 5, 64, 1), w = random_matrix(GetParam(), 60, 64, 2);
  const HostTensor y = run(rig_.put(GetParam(), x), rig_.put(GetParam(), w), nullptr, GetParam());
  const twin::Answer answer = want(x, w, nullptr, GetParam());
  ASSERT_TRUE(within_budget(y, answer));
  Matrix wrong = w;
  wrong.values[7] = -wrong.values[7];  // one weight
  EXPECT_FALSE(within_budget(
      run(rig_.put(GetParam(), x), rig_.put(GetParam(), wrong), nullptr, GetParam()), answer));
  const Tensor x_short = rig_.put(GetParam(), x).col_range(0, 63),
               w_short = rig_.put(GetParam(), w).col_range(0, 63);
  EXPECT_FALSE(within_budget(run(x_short, w_short, nullptr, GetParam()), answer));  // the last product
  std::vector<double> values = y.to_f64();
  values[3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(within_budget(round_to(GetParam(), y.shape(), values), answer));
}

TEST_P(LinearTest, IsExactOnSmallIntegers) {
  // |y| <= 40 * 2 * 2 + 3 < 256: exact in every dtype, in any order.
  for (const Shape& s : {Shape{1, 40, 7}, Shape{6, 40, 53}, Shape{101, 39, 50}}) {
    const Matrix x = integer_matrix(s.m, s.k, 4, 2), w = integer_matrix(s.n, s.k, 5, 2);
    const Matrix bias = integer_matrix(1, s.n, 6, 3);
    const twin::Answer answer = want(x, w, &bias, GetParam());
    const Tensor b = rig_.put(GetParam(), bias);
    const HostTensor exact = exactly(GetParam(), Matrix{s.m, s.n, answer.value});
    const HostTensor got = run(rig_.put(GetParam(), x), rig_.put(GetParam(), w), &b, GetParam());
    EXPECT_TRUE(got.bitwise_equal(exact));
    EXPECT_FALSE(with_flipped_bit(got, s.n - 1, 0).bitwise_equal(exact));
  }
}

TEST_P(LinearTest, RoundsSumsOfIntegersOnce) {
  // |y| <= 300 * 64 + 64 < 2^15: the sum is exact in f32, in any order, and mostly not in 16 bits.
  const Matrix x = integer_matrix(9, 300, 4, 8), w = integer_matrix(70, 300, 5, 8),
               bias = integer_matrix(1, 70, 6, 64);
  const Tensor b = rig_.put(GetParam(), bias);
  const HostTensor exact = exactly(GetParam(), Matrix{9, 70, want(x, w, &bias, GetParam()).value});
  EXPECT_TRUE(
      run(rig_.put(GetParam(), x), rig_.put(GetParam(), w), &b, GetParam()).bitwise_equal(exact));
}

TEST_P(LinearTest, BitsAreThoseOfTheValuesInAnyLayout) {
  for (const Shape& s : {Shape{1, 1031, 50}, Shape{5, 77, 51}, Shape{100, 65, 13}}) {
    const Matrix x = random_matrix(GetParam(), s.m, s.k, 1),
                 w = random_matrix(GetParam(), s.n, s.k, 2);
    const HostTensor exact = run(rig_.put(GetParam(), x), rig_.put(GetParam(), w), nullptr, GetParam());
    for (const Layout layout : kLayouts) {
      EXPECT_TRUE(run(rig_.put(GetParam(), x, layout), rig_.put(GetParam(), w), nullptr, GetParam())
                      .bitwise_equal(exact));
      EXPECT_TRUE(run(rig_.put(GetParam(), x), rig_.put(GetParam(), w, layout), nullptr, GetParam())
                      .bitwise_equal(exact));
      EXPECT_TRUE(run(rig_.put(GetParam(), x), rig_.put(GetParam(), w), nullptr, GetParam(), layout)
                      .bitwise_equal(exact));
    }
  }
}

TEST_P(LinearTest, BitsDoNotDependOnWhereTheBiasLies) {
  for (const Shape& s : {Shape{1, 67, 50}, Shape{5, 77, 51}, Shape{19, 40, 13}}) {
    const Tensor x = rig_.put(GetParam(), random_matrix(GetParam(), s.m, s.k, 1)),
                 w = rig_.put(GetParam(), random_matrix(GetParam(), s.n, s.k, 2));
    const Matrix bias = random_matrix(GetParam(), 1, s.n, 3);
    const Tensor dense = rig_.put(GetParam(), bias);
    for (const DType out : {GetParam(), DType::f32}) {
      const HostTensor exact = run(x, w, &dense, out);
      EXPECT_FALSE(run(x, w, nullptr, out).bitwise_equal(exact));  // the bias counts
      for (const Layout layout : kLayouts) {
        const Tensor moved = rig_.put(GetParam(), bias, layout);
        EXPECT_TRUE(run(x, w, &moved, out).bitwise_equal(exact))
            << "out " << name(out) << " [" << s.m << ", " << s.n << "], layout "
            << static_cast<int>(layout);
      }
    }
  }
}

TEST_P(LinearTest, WritesNothingBesideItsOutput) {
  for (const Layout layout : {Layout::inset, Layout::transposed}) {
    const Tensor out = rig_.make(GetParam(), 5, 50, layout);
    Tensor around = out;  // one more on every side: all still NaN afterwards
    around.offset -= out.row_stride + out.col_stride;
    around.rows += 2;
    around.cols += 2;
    rig_.device().linear(rig_.stream(), rig_.put(GetParam(), random_matrix(GetParam(), 5, 9, 1)),
                         rig_.put(GetParam(), random_matrix(GetParam(), 50, 9, 2)), nullptr, out);
    const std::vector<double> values = rig_.get(around).to_f64();
    for (std::int64_t i = 0; i < around.elements(); ++i) {
      const std::int64_t row = i / around.cols, col = i % around.cols;
      const bool inside = row > 0 && row <= 5 && col > 0 && col <= 50;
      EXPECT_EQ(std::isnan(values[static_cast<std::size_t>(i)]), !inside) << row << " " << col;
    }
  }
}

TEST_P(LinearTest, WithoutInputFeaturesTheBiasIsLeft) {
  const Tensor x = rig_.make(GetParam(), 3, 0), w = rig_.make(GetParam(), 5, 0);
  const Matrix bias = random_matrix(GetParam(), 1, 5, 3);
  const Tensor b = rig_.put(GetParam(), bias);
  EXPECT_EQ(run(x, w, nullptr, GetParam()).to_f64(), std::vector<double>(15, 0.0));
  const std::vector<double> got = run(x, w, &b, GetParam()).to_f64();
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], bias.values[i % 5]);
}

TEST_P(LinearTest, EmptyOutputsAreLegal) {
  EXPECT_EQ(
      run(rig_.make(GetParam(), 0, 4), rig_.make(GetParam(), 5, 4), nullptr, GetParam()).elements(), 0);
  EXPECT_EQ(
      run(rig_.make(GetParam(), 3, 4), rig_.make(GetParam(), 0, 4), nullptr, GetParam()).elements(), 0);
}

INSTANTIATE_TEST_SUITE_P(Storage, LinearTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

TEST(LinearRounding, TheBiasIsAddedBeforeTheOneRounding) {
  DeviceRig rig;
  // 257 lies halfway between the bf16 numbers 256 and 258; rounded first, 256 + 1 would become 256 again.
  const Tensor x = rig.put(DType::bf16, Matrix{1, 2, {16, 1}}),
               w = rig.put(DType::bf16, Matrix{1, 2, {16, 1}});
  const Tensor bias = rig.put(DType::bf16, Matrix{1, 1, {1}});
  const Tensor out = rig.make(DType::bf16, 1, 1);
  rig.device().linear(rig.stream(), x, w, &bias, out);
  EXPECT_EQ(rig.get(out).at(0), 258);
  rig.device().linear(rig.stream(), x, w, nullptr, out);
  EXPECT_EQ(rig.get(out).at(0), 256);
}

}  // namespace
}  // namespace shardcheck
