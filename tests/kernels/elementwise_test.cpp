// SPDX-License-Identifier: Apache-2.0
// gate, unary, add, bias, cast.
#include "kernels/cpu/exponential.hpp"
#include "tests/kernels/cpu_rig.hpp"

namespace shardcheck {
namespace {

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu_tanh(double x) {
  const double slope = std::sqrt(2 / std::acos(-1.0));
  return 0.5 * x * (1 + std::tanh(slope * (x + 0.044715 * x * x * x)));
}

double smallest_normal(DType storage) { return std::exp2(info(accumulate_dtype(storage)).min_exponent); }

class ElementwiseTest : public testing::TestWithParam<DType> {
 protected:
  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1) {
    return random_matrix(GetParam(), rows, cols, seed, scale);
  }
  double u_acc() const { return unit_roundoff(accumulate_dtype(GetParam())); }
  double u_out() const { return unit_roundoff(GetParam()); }
  double tiny() const { return half_min_subnormal(GetParam()); }

  HostTensor gate(const Matrix& g, const Matrix& u, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(GetParam(), g.rows, g.cols, layout);
    rig_.device().gate(rig_.stream(), rig_.put(GetParam(), g, layout), rig_.put(GetParam(), u), out);
    return rig_.get(out);
  }
  HostTensor unary(UnaryKind kind, const Matrix& x, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(GetParam(), x.rows, x.cols, layout);
    rig_.device().unary(rig_.stream(), kind, rig_.put(GetParam(), x, layout), out);
    return rig_.get(out);
  }

  CpuRig rig_;
};

TEST_P(ElementwiseTest, GateAgreesWithTheTwin) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 7}, {5, 1029}, {2, 2048}}) {
    const Matrix g = random(rows, cols, 1, 7), u = random(rows, cols, 2, 3);
    Twin twin;  // budget: (u_out + 4 u_acc) |y| + min_normal |up|
    for (std::size_t i = 0; i < g.values.size(); ++i) {
      const double y = silu(g.values[i]) * u.values[i];
      twin.add(y, (u_out() + 4 * u_acc()) * std::abs(y) + tiny() + smallest_normal(GetParam()) * std::abs(u.values[i]));
    }
    const HostTensor dense = gate(g, u);
    EXPECT_TRUE(within_budget(dense, twin)) << cols;
    for (const Layout layout : kLayouts) EXPECT_TRUE(gate(g, u, layout).bitwise_equal(dense));
    EXPECT_FALSE(within_budget(gate(u, g), twin));  // gate and up exchanged
  }
}

TEST_P(ElementwiseTest, UnaryAgreesWithTheTwin) {
  const Matrix x = random(5, 1029, 1, 7);
  Twin silu_twin, gelu_twin;
  for (const double v : x.values) {
    silu_twin.add(silu(v), (u_out() + 4 * u_acc()) * std::abs(silu(v)) + tiny() + smallest_normal(GetParam()));
    gelu_twin.add(gelu_tanh(v), u_out() * std::abs(gelu_tanh(v)) + 4 * u_acc() * std::abs(v) + tiny());
  }
  for (const Layout layout : kLayouts) {
    EXPECT_TRUE(within_budget(unary(UnaryKind::silu, x, layout), silu_twin));
    EXPECT_TRUE(within_budget(unary(UnaryKind::gelu_tanh, x, layout), gelu_twin));
  }
  EXPECT_FALSE(within_budget(unary(UnaryKind::gelu_tanh, x), silu_twin));
  EXPECT_FALSE(within_budget(unary(UnaryKind::silu, x), gelu_twin));
}

TEST_P(ElementwiseTest, ActivationsKeepTheirLimits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Matrix x{1, 4, {0, 60, kInfinity, std::numeric_limits<double>::quiet_NaN()}};
  for (const UnaryKind kind : {UnaryKind::silu, UnaryKind::gelu_tanh}) {
    const std::vector<double> y = unary(kind, x).to_f64();
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[1], 60);
    EXPECT_EQ(y[2], kInfinity);
    EXPECT_TRUE(std::isnan(y[3]));
  }
}

TEST_P(ElementwiseTest, AddAndBiasRoundOnce) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 7}, {4, 1029}}) {
    const Matrix a = random(rows, cols, 1), b = random(rows, cols, 2, 0.1), c = random(1, cols, 3);
    for (const DType out_dtype : kStorageDTypes) {
      Matrix sum{rows, cols, {}}, biased{rows, cols, {}};
      for (std::int64_t i = 0; i < rows * cols; ++i) {
        const auto at = static_cast<std::size_t>(i);
        sum.values.push_back(a.values[at] + b.values[at]);
        biased.values.push_back(a.values[at] + c(0, i % cols));
      }
      // The f32 sum first, which is exact to within its one rounding, then the output's.
      const DType acc = accumulate_dtype(GetParam());
      sum.values = exactly(acc, sum).to_f64(), biased.values = exactly(acc, biased).to_f64();
      for (const Layout layout : kLayouts) {
        const Tensor out = rig_.make(out_dtype, rows, cols, layout);
        rig_.device().add(rig_.stream(), rig_.put(GetParam(), a, layout), rig_.put(GetParam(), b), out);
        EXPECT_TRUE(rig_.get(out).bitwise_equal(exactly(out_dtype, sum)));
        EXPECT_FALSE(with_flipped_bit(rig_.get(out), cols - 1, 0).bitwise_equal(exactly(out_dtype, sum)));
        rig_.device().bias(rig_.stream(), rig_.put(GetParam(), a), rig_.put(GetParam(), c, layout), out);
        EXPECT_TRUE(rig_.get(out).bitwise_equal(exactly(out_dtype, biased)));
      }
    }
  }
}

TEST_P(ElementwiseTest, CastRoundsOnceToAnyDType) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 13}, {2, 1029}}) {
    Matrix x = random(rows, cols, 1);
    Words words(5);
    for (double& v : x.values) v *= std::exp2(static_cast<double>(words.integer(-30, 10)));  // subnormals in fp16
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
  EXPECT_EQ(gate(none, none).elements(), 0);
  EXPECT_EQ(unary(UnaryKind::silu, Matrix{3, 0, {}}).elements(), 0);
}

INSTANTIATE_TEST_SUITE_P(Storage, ElementwiseTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

TEST(Cast, FromF64IsNotRoundedTwice) {
  // 1 + 2^-8 + 2^-40 is above the middle of two bf16 numbers; through f32 it would fall on it and to even.
  CpuRig rig;
  const Tensor x = rig.put(DType::f64, Matrix{1, 2, {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40}});
  const Tensor bf16 = rig.make(DType::bf16, 1, 2), f16 = rig.make(DType::f16, 1, 2);
  rig.device().cast(rig.stream(), x, bf16);
  rig.device().cast(rig.stream(), x, f16);
  EXPECT_EQ(rig.get(bf16).at(0), 1 + 0x1p-7);
  EXPECT_EQ(rig.get(f16).at(1), 1 + 0x1p-10);
}

TEST(Exponential, StaysWithinTwoUlp) {
  // All bit patterns in steps that meet every exponent and many fractions, where e^x is neither 0 nor infinite.
  double worst = 0;
  for (std::uint32_t bits = 0; bits < 0x42d20000u; bits += 4099) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float x = std::bit_cast<float>(bits | sign);
      const double want = std::exp(static_cast<double>(x));
      if (want > static_cast<double>(std::numeric_limits<float>::max())) continue;
      const double got = cpu::exponential(cpu::broadcast(x))[3];
      const double ulp = 2 * unit_roundoff(DType::f32) * want + 2 * half_min_subnormal(DType::f32);
      worst = std::max(worst, std::abs(got - want) / ulp);
      ASSERT_LE(std::abs(got - want), 2 * ulp) << x;
    }
  }
  EXPECT_GT(worst, 0.5);  // the sweep isn't empty: a correctly rounded result reaches half an ulp
  EXPECT_EQ(cpu::exponential(cpu::broadcast(-200.0f))[0], 0.0f);
  EXPECT_EQ(cpu::exponential(cpu::broadcast(-std::numeric_limits<float>::infinity()))[0], 0.0f);
  EXPECT_EQ(cpu::exponential(cpu::broadcast(0.0f))[0], 1.0f);
  EXPECT_EQ(cpu::exponential(cpu::broadcast(200.0f))[0], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(cpu::exponential(cpu::broadcast(std::numeric_limits<float>::quiet_NaN()))[0]));
}

}  // namespace
}  // namespace shardcheck
