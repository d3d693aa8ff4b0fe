// SPDX-License-Identifier: Apache-2.0
// gate, unary, add, bias, cast.
#include "kernels/twin/elementwise.hpp"

#include "kernels/twin/activation.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

class ElementwiseTest : public testing::TestWithParam<DType> {
 protected:
  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1) {
    return random_matrix(GetParam(), rows, cols, seed, scale);
  }

  HostTensor gate(const Matrix& g, const Matrix& u, DType out_dtype, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(out_dtype, g.rows, g.cols, layout);
    rig_.device().gate(rig_.stream(), rig_.put(GetParam(), g, layout), rig_.put(GetParam(), u), out);
    return rig_.get(out);
  }
  HostTensor unary(UnaryKind kind, const Matrix& x, DType out_dtype, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(out_dtype, x.rows, x.cols, layout);
    rig_.device().unary(rig_.stream(), kind, rig_.put(GetParam(), x, layout), out);
    return rig_.get(out);
  }

  DeviceRig rig_;
};

TEST_P(ElementwiseTest, GateAgreesWithTheTwin) {
  const Arithmetic arithmetic = rig_.arithmetic(Primitive::gate, GetParam());
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 7}, {5, 1029}, {2, 2048}}) {
    const Matrix g = random(rows, cols, 1, 7), u = random(rows, cols, 2, 3);
    for (const DType out : {GetParam(), accumulate_dtype(GetParam())}) {
      const twin::Answer answer = twin::gate(g, u, out, arithmetic);
      const HostTensor dense = gate(g, u, out);
      EXPECT_TRUE(within_budget(dense, answer)) << cols;
      for (const Layout layout : kLayouts)
        EXPECT_TRUE(gate(g, u, out, layout).bitwise_equal(dense));
      EXPECT_FALSE(within_budget(gate(u, g, out), answer));  // gate and up exchanged
    }
  }
}

TEST_P(ElementwiseTest, UnaryAgreesWithTheTwin) {
  const Matrix x = random(5, 1029, 1, 7);
  const Arithmetic arithmetic = rig_.arithmetic(Primitive::unary, GetParam());
  for (const DType out : {GetParam(), accumulate_dtype(GetParam())}) {
    const twin::Answer silu = twin::unary(UnaryKind::silu, x, out, arithmetic);
    const twin::Answer gelu = twin::unary(UnaryKind::gelu_tanh, x, out, arithmetic);
    for (const Layout layout : kLayouts) {
      EXPECT_TRUE(within_budget(unary(UnaryKind::silu, x, out, layout), silu));
      EXPECT_TRUE(within_budget(unary(UnaryKind::gelu_tanh, x, out, layout), gelu));
    }
    EXPECT_FALSE(within_budget(unary(UnaryKind::gelu_tanh, x, out), silu));
    EXPECT_FALSE(within_budget(unary(UnaryKind::silu, x, out), gelu));
  }
}

TEST_P(ElementwiseTest, ActivationsKeepTheirRelativeAccuracyOnTheLeft) {
  // Where e^x is small but normal, silu's result is right to a few roundoffs of itself.
  Matrix x{1, 80, {}};
  for (int i = 0; i < 80; ++i) x.values.push_back(-0.9 * i);
  x.values = exactly(GetParam(), x).to_f64();
  const Arithmetic arithmetic = rig_.arithmetic(Primitive::unary, GetParam());
  const DType acc = arithmetic.accumulate;
  twin::Answer silu;  // e^x's argument is exact; u_acc for e^x, the sum, the quotient, the product
  for (const double v : x.values)
    silu.add(twin::silu(v), 4 * unit_roundoff(acc) * std::abs(twin::silu(v)));
  EXPECT_TRUE(within_budget(unary(UnaryKind::silu, x, acc), silu));
}

TEST_P(ElementwiseTest, ActivationsKeepTheirLimits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Matrix x{1, 4, {0, 60, kInfinity, std::numeric_limits<double>::quiet_NaN()}};
  for (const UnaryKind kind : {UnaryKind::silu, UnaryKind::gelu_tanh}) {
    const std::vector<double> y = unary(kind, x, GetParam()).to_f64();
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[1], 60);
    EXPECT_EQ(y[2], kInfinity);
    EXPECT_TRUE(std::isnan(y[3]));
  }
}

TEST_P(ElementwiseTest, AddAndBiasRoundOnce) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 7}, {4, 1029}, {3, 512}}) {
    const Matrix a = random(rows, cols, 1), b = random(rows, cols, 2, 0.1), c = random(1, cols, 3);
    const Matrix sum = twin::add(a, b, GetParam()), biased = twin::add(a, c, GetParam());
    for (const DType out_dtype : kStorageDTypes) {
      const HostTensor sum_bits = exactly(out_dtype, sum), biased_bits = exactly(out_dtype, biased);
      for (const Layout layout : kLayouts) {
        const Tensor out = rig_.make(out_dtype, rows, cols, layout);
        rig_.device().add(rig_.stream(), rig_.put(GetParam(), a, layout), rig_.put(GetParam(), b), out);
        EXPECT_TRUE(rig_.get(out).bitwise_equal(sum_bits));
        EXPECT_FALSE(with_flipped_bit(rig_.get(out), cols - 1, 0).bitwise_equal(sum_bits));
        rig_.device().bias(rig_.stream(), rig_.put(GetParam(), a), rig_.put(GetParam(), c, layout),
                           out);
        EXPECT_TRUE(rig_.get(out).bitwise_equal(biased_bits));
        rig_.device().bias(rig_.stream(), rig_.put(GetParam(), a, layout), rig_.put(GetParam(), c),
                           out);
        EXPECT_TRUE(rig_.get(out).bitwise_equal(biased_bits));
      }
    }
  }
}

TEST_P(ElementwiseTest, NothingIsWrittenBesideTheOutput) {
  for (const Layout layout : {Layout::inset, Layout::padded, Layout::transposed}) {
    const Tensor out = rig_.make(GetParam(), 5, 37, layout);
    Tensor around = out;  // one more on every side: all still NaN afterwards
    around.offset -= out.row_stride + out.col_stride;
    around.rows += 2;
    around.cols += 2;
    const Tensor x = rig_.put(GetParam(), random(5, 37, 1), layout);
    const auto only_inside = [&](const char* call) {
      const std::vector<double> values = rig_.get(around).to_f64();
      for (std::int64_t i = 0; i < around.elements(); ++i) {
        const std::int64_t row = i / around.cols, col = i % around.cols;
        const bool inside = row > 0 && row <= 5 && col > 0 && col <= 37;
        EXPECT_EQ(std::isnan(values[static_cast<std::size_t>(i)]), !inside)
            << call << " " << row << " " << col;
      }
      rig_.device().poison(rig_.stream(), out);
    };
    rig_.device().add(rig_.stream(), x, x, out);
    only_inside("add");
    rig_.device().unary(rig_.stream(), UnaryKind::silu, x, out);
    only_inside("silu");
    rig_.device().copy(rig_.stream(), x, out);
    only_inside("copy");
  }
}

TEST_P(ElementwiseTest, CastRoundsOnceToAnyDType) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 13}, {2, 1029}}) {
    Matrix x = random(rows, cols, 1);
    Words words(5);
    for (double& v : x.values)
      v *= std::exp2(static_cast<double>(words.integer(-30, 10)));  // subnormals in fp16
    x.values = exactly(GetParam(), x).to_f64();
    for (const DType out_dtype : kStorageDTypes) {
      for (const Layout layout : kLayouts) {
        const Tensor out = rig_.make(out_dtype, rows, cols, layout);
        rig_.device().cast(rig_.stream(), rig_.put(GetParam(), x, layout), out);
        EXPECT_TRUE(rig_.get(out).bitwise_equal(exactly(out_dtype, x))) << name(out_dtype);
      }
    }
  }
}

TEST_P(ElementwiseTest, EmptyExtentsAreLegal) {
  const Matrix none{0, 5, {}};
  EXPECT_EQ(gate(none, none, GetParam()).elements(), 0);
  EXPECT_EQ(unary(UnaryKind::silu, Matrix{3, 0, {}}, GetParam()).elements(), 0);
}

INSTANTIATE_TEST_SUITE_P(Storage, ElementwiseTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

TEST(Cast, FromF64IsNotRoundedTwice) {
  // 1 + 2^-8 + 2^-40 is above the middle of two bf16 numbers; through f32 it would fall on it and to even.
  DeviceRig rig;
  const Tensor x = rig.put(DType::f64, Matrix{1, 2, {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40}});
  const Tensor bf16 = rig.make(DType::bf16, 1, 2), f16 = rig.make(DType::f16, 1, 2);
  rig.device().cast(rig.stream(), x, bf16);
  rig.device().cast(rig.stream(), x, f16);
  EXPECT_EQ(rig.get(bf16).at(0), 1 + 0x1p-7);
  EXPECT_EQ(rig.get(f16).at(1), 1 + 0x1p-10);
}

}  // namespace
}  // namespace shardcheck
