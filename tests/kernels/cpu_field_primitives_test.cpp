// SPDX-License-Identifier: Apache-2.0
// The field device's primitives against their definitions, written out naively; wrong statistics, poison, layouts.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <map>

#include "kernels/cpu/cpu_device.hpp"
#include "tests/kernels/field_rig.hpp"

namespace shardcheck {
namespace {

using field::inverse;
using field::kPoison;
using field::kPrime;
using field::Residue;

/// Without a maximum: softmax weights are H(exp, s) over their sum, as in the definition.
RC_GTEST_PROP(FieldAttention, IsItsDefinition, ()) {
  FieldRig rig(3);
  const auto between = [](std::int64_t lo, std::int64_t hi) {
    return *rc::gen::inRange<std::int64_t>(lo, hi + 1);
  };
  const std::int64_t d = between(1, 4), keys = between(1, 9), rows = between(1, keys),
                     window = between(0, 4);
  const std::int64_t first = keys - rows;
  const std::vector<std::int32_t> heads{1, 0, 1};
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const Residues q = random_residues(rows, 3 * d, seed), k = random_residues(keys, 2 * d, seed + 1),
                 v = random_residues(keys, 2 * d, seed + 2);
  const AttentionShape shape{.head_dim = d, .scale = 0.25, .q_first = first, .window = window};
  const Residues got = rig.finish(rig.attend(rig.put(q), rig.put(k), rig.put(v), heads, shape), d);
  field::Hash exp(3, "exp", "");
  const Residue scale = rig.device().givens().constant(0.25);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t head = 0; head < 3; ++head) {
      const std::int64_t kv = heads[static_cast<std::size_t>(head)] * d;
      std::map<std::int64_t, Residue> weights;
      Residue total;
      for (std::int64_t j = 0; j < keys; ++j) {
        const std::int64_t distance = first + i - j;
        if (distance < 0 || (window > 0 && distance >= window)) continue;
        Residue score;
        for (std::int64_t c = 0; c < d; ++c)
          score = score + Residue{q(i, head * d + c)} * Residue{k(j, kv + c)};
        weights[j] = exp(score * scale);
        total = total + weights[j];
      }
      for (std::int64_t c = 0; c < d; ++c) {
        Residue sum;
        for (const auto& [j, weight] : weights) sum = sum + weight * Residue{v(j, kv + c)};
        RC_ASSERT(got(i, head * d + c) == (sum * inverse(total)).bits);
      }
    }
  }
}

TEST(FieldVocabulary, CrossEntropyIsItsDefinition) {
  FieldRig rig(3);
  const Residues x = random_residues(2, 7, 1);
  const Residues loss = rig.loss(rig.entropy(rig.put(x), rig.put_ids({6, 2}), {{0, 7}}));
  field::Hash exp(3, "exp", ""), log(3, "log", "");
  for (std::int64_t row = 0; row < 2; ++row) {
    Residue total;
    for (std::int64_t j = 0; j < 7; ++j) total = total + exp(Residue{x(row, j)});
    EXPECT_EQ(loss(row, 0), (log(total) - Residue{x(row, row == 0 ? 6 : 2)}).bits);
  }
}

class FieldNorms : public testing::Test {
 protected:
  FieldRig rig_{5};
  Tensor x_ = rig_.put(random_residues(3, 8, 1)), w_ = rig_.put(random_residues(1, 8, 2)),
         b_ = rig_.put(random_residues(1, 8, 3));

  Residues left(const Residues& whole) const {
    Residues part{whole.rows, 4, {}};
    for (std::int64_t m = 0; m < whole.rows; ++m) {
      for (std::int64_t i = 0; i < 4; ++i) part.values.push_back(whole(m, i));
    }
    return part;
  }
};

TEST_F(FieldNorms, AreTheirDefinition) {
  const Residues x = rig_.get(x_), w = rig_.get(w_), b = rig_.get(b_), rms = rig_.rms_norm(x_, w_),
                 layer = rig_.layer_norm(x_, w_, b_);
  field::Hash rsqrt(5, "rsqrt", "");
  const Residue share = inverse(field::count(8)), eps = rig_.device().givens().constant(1e-5);
  for (std::int64_t m = 0; m < 3; ++m) {
    Residue total, squares, centred;
    for (std::int64_t i = 0; i < 8; ++i) total = total + Residue{x(m, i)};
    const Residue mean = total * share;
    for (std::int64_t i = 0; i < 8; ++i) {
      const Residue c = Residue{x(m, i)} - mean;
      squares = squares + Residue{x(m, i)} * Residue{x(m, i)};
      centred = centred + c * c;
    }
    for (std::int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(rms(m, i), (Residue{x(m, i)} * rsqrt(squares * share + eps) * Residue{w(0, i)}).bits);
      EXPECT_EQ(layer(m, i),
                ((Residue{x(m, i)} - mean) * rsqrt(centred * share + eps) * Residue{w(0, i)} +
                 Residue{b(0, i)})
                    .bits);
    }
  }
}

TEST_F(FieldNorms, AStatisticOverAShardShows) {
  const Tensor x = x_.col_range(0, 4), w = w_.col_range(0, 4), b = b_.col_range(0, 4);
  EXPECT_NE(rig_.rms_norm(x, w), left(rig_.rms_norm(x_, w_)));
  EXPECT_NE(rig_.layer_norm(x, w, b), left(rig_.layer_norm(x_, w_, b_)));
}

TEST_F(FieldNorms, AWrongDivisorOrEpsShows) {
  // The sum of squares is that of the whole, and the count is not: zeros are added to the row.
  Residues padded = all(3, 16, 0), ones = all(1, 16, 1);
  const Residues x = rig_.get(x_);
  for (std::int64_t m = 0; m < 3; ++m) {
    for (std::int64_t i = 0; i < 8; ++i) padded(m, i) = x(m, i);
  }
  EXPECT_NE(left(rig_.rms_norm(rig_.put(padded), rig_.put(ones))),
            left(rig_.rms_norm(x_, rig_.put(all(1, 8, 1)))));
  EXPECT_NE(rig_.rms_norm(x_, w_, 1e-6), rig_.rms_norm(x_, w_, 1e-5));
}

TEST_F(FieldNorms, AddAndNormInOneIsBoth) {
  const Tensor y = rig_.put(random_residues(3, 8, 4)), total = rig_.make(3, 8), out = rig_.make(3, 8);
  rig_.device().add_rms_norm(rig_.stream(), x_, y, w_, 1e-5, total, out);
  EXPECT_EQ(rig_.get(total), sum(rig_.get(x_), rig_.get(y)));
  EXPECT_EQ(rig_.get(out), rig_.rms_norm(rig_.put(rig_.get(total)), w_));
}

TEST(FieldRope, TurnsPairsByBothConventions) {
  FieldRig rig;
  const Residues x = random_residues(2, 8, 1), c = random_residues(2, 2, 2),
                 s = random_residues(2, 2, 3);
  for (const bool halves : {true, false}) {
    const Tensor out = rig.make(2, 8);
    rig.device().rope(rig.stream(), rig.put(x), rig.put(c), rig.put(s), 4,
                      halves ? RopeConvention::half_split : RopeConvention::interleaved, out);
    const Residues got = rig.get(out);
    for (const std::int64_t head : {0, 4}) {
      for (std::int64_t i = 0; i < 2; ++i) {
        const std::int64_t at = head + (halves ? i : 2 * i), to = at + (halves ? 2 : 1);
        EXPECT_EQ(got(1, at),
                  (Residue{x(1, at)} * Residue{c(1, i)} - Residue{x(1, to)} * Residue{s(1, i)}).bits);
        EXPECT_EQ(got(1, to),
                  (Residue{x(1, to)} * Residue{c(1, i)} + Residue{x(1, at)} * Residue{s(1, i)}).bits);
      }
    }
  }
}

TEST(FieldActivations, KeepZeroAndDependOnTheSeed) {
  Residues x = random_residues(2, 5, 1);
  x(0, 3) = 0;
  FieldRig one(1), two(2);
  for (const UnaryKind kind : {UnaryKind::silu, UnaryKind::gelu_tanh}) {
    const Residues a = one.unary(kind, one.put(x)), b = two.unary(kind, two.put(x));
    EXPECT_EQ(a(0, 3), 0u);
    for (std::size_t i = 0; i < a.values.size(); ++i)
      EXPECT_EQ(a.values[i] == b.values[i], x.values[i] == 0);
  }
  EXPECT_NE(one.unary(UnaryKind::silu, one.put(x)), one.unary(UnaryKind::gelu_tanh, one.put(x)));
  const Residues up = random_residues(2, 5, 2), silu = one.unary(UnaryKind::silu, one.put(x));
  const Tensor out = one.make(2, 5);
  one.device().gate(one.stream(), one.put(x), one.put(up), out);
  const Residues gated = one.get(out);
  for (std::size_t i = 0; i < up.values.size(); ++i)
    EXPECT_EQ(gated.values[i], (Residue{silu.values[i]} * Residue{up.values[i]}).bits);
}

TEST(FieldWeights, AreToldByNameAndIndex) {
  const FieldDevice device(1), other(2);
  EXPECT_EQ(device.elements("lm_head.weight").at(12), device.elements("lm_head.weight").at(12));
  EXPECT_NE(device.elements("lm_head.weight").at(12), device.elements("lm_head.weight").at(13));
  EXPECT_NE(device.elements("lm_head.weight").at(12), device.elements("embed.weight").at(12));
  EXPECT_NE(device.elements("lm_head.weight").at(12), other.elements("lm_head.weight").at(12));
}

/// One poisoned operand of each primitive poisons what depends on it, and nothing else.
TEST(FieldPoison, Spreads) {
  FieldRig rig;
  Residues bad = random_residues(3, 4, 1);
  bad(1, 2) = kPoison;
  const Tensor x = rig.put(bad), good = rig.put(random_residues(3, 4, 2)),
               w = rig.put(random_residues(1, 4, 3));
  const auto rows_poisoned = [](const Residues& out, std::int64_t row) {
    for (std::int64_t m = 0; m < out.rows; ++m) {
      for (std::int64_t i = 0; i < out.cols; ++i) {
        if ((out(m, i) == kPoison) != (m == row)) return false;
      }
    }
    return true;
  };
  EXPECT_TRUE(rows_poisoned(rig.linear(x, good), 1));
  EXPECT_TRUE(rows_poisoned(rig.rms_norm(x, w), 1));
  EXPECT_TRUE(rows_poisoned(rig.layer_norm(x, w, w), 1));
  const Residues by_weight = rig.linear(good, x);
  for (std::int64_t m = 0; m < 3; ++m) {
    for (std::int64_t n = 0; n < 3; ++n) EXPECT_EQ(by_weight(m, n) == kPoison, n == 1);
  }
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    const Residues reduced = rig.reduce({x, good}, {.op = op});
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(reduced(1, i) == kPoison, i == 2);
  }
  const Residues activated = rig.unary(UnaryKind::silu, x);
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(activated(1, i) == kPoison, i == 2);

  const std::vector<std::int32_t> heads{0};
  const AttentionShape shape{.head_dim = 4, .scale = 1, .q_first = 2};  // every query sees every key
  EXPECT_TRUE(rows_poisoned(rig.finish(rig.attend(x, good, good, heads, shape), 4), 1));
  EXPECT_EQ(rig.finish(rig.attend(good, x, good, heads, shape), 4), all(3, 4, kPoison));
  const Residues by_value = rig.finish(rig.attend(good, good, x, heads, shape), 4);
  for (std::int64_t m = 0; m < 3; ++m) {
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(by_value(m, i) == kPoison, i == 2);
  }

  const Owned owned{{0, 4}};
  EXPECT_TRUE(rows_poisoned(rig.loss(rig.entropy(x, rig.put_ids({0, 0, 0}), owned)), 1));
  const Tensor value = rig.make(3, 1), index = rig.device().allocate(rig.stream(), DType::i64, 3, 1);
  rig.device().argmax(rig.stream(), x, owned, value, index);
  EXPECT_TRUE(rows_poisoned(rig.get(value), 1));
  EXPECT_EQ(rig.get(index)(1, 0), 2u);
}

/// Where nothing depends on a padded or transposed view's neighbours, which are poison.
TEST(FieldLayouts, AreReadThroughTheirStrides) {
  FieldRig rig;
  const Residues x = random_residues(3, 5, 1), w = random_residues(4, 5, 2);
  const Residues dense = rig.linear(rig.put(x), rig.put(w));
  const auto inset = [&](const Residues& values, bool turned) {
    Tensor whole = rig.make(values.rows + 5, values.cols + 5);
    if (turned) {
      whole = rig.make(values.cols + 5, values.rows + 5);
      std::swap(whole.rows, whole.cols);
      std::swap(whole.row_stride, whole.col_stride);
    }
    const Tensor view = whole.row_range(2, 2 + values.rows).col_range(3, 3 + values.cols);
    rig.device().copy(rig.stream(), rig.put(values), view);
    return view;
  };
  for (const bool turned : {false, true}) {
    const Tensor out = inset(all(3, 4, kPoison), turned);
    rig.device().linear(rig.stream(), inset(x, turned), inset(w, !turned), nullptr, out);
    EXPECT_EQ(rig.get(out), dense);
  }
}

TEST(FieldPrimitives, RopesTablesAreGivensOfTheAngle) {
  const FieldDevice field(3);
  const std::vector<double> angles{0.0, 0.25, 2.0, -0.0, 0.25, 3.0};
  const HostTensor cos = field.cosines(DType::field, {2, 3}, angles), sin = field.sines(DType::field, {2, 3}, angles);
  EXPECT_EQ(cos.shape(), (std::vector<std::int64_t>{2, 3}));
  for (std::size_t i = 0; i < angles.size(); ++i) {
    EXPECT_EQ(cos.as<Residue>()[i], field.givens().cosine(angles[i]));
    EXPECT_EQ(sin.as<Residue>()[i], field.givens().sine(angles[i]));
  }
  EXPECT_EQ(cos.as<Residue>()[0], cos.as<Residue>()[3]);
  EXPECT_NE(cos.as<Residue>()[1], sin.as<Residue>()[1]);
  const auto cpu = make_cpu_device();
  EXPECT_EQ(cpu->cosines(DType::f32, {1, 2}, std::vector<double>{0.5, 1.0}).at(1), double{static_cast<float>(std::cos(1.0))});
  EXPECT_EQ(cpu->sines(DType::f64, {1, 2}, std::vector<double>{0.5, 1.0}).at(0), std::sin(0.5));
}

}  // namespace
}  // namespace shardcheck
