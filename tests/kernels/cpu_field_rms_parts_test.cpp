// SPDX-License-Identifier: Apache-2.0
// RMSNorm of parts over the field: exactly the norm of the whole, whatever the cut, and not where anything is off.
#include "tests/kernels/field_rig.hpp"

namespace shardcheck {
namespace {

using field::kPoison;

class FieldRmsParts : public testing::Test {
 protected:
  static constexpr std::int64_t kFeatures = 11;

  Residues squares(const Tensor& x) {
    const Tensor out = rig_.make(x.rows, 1);
    rig_.device().square_sum(rig_.stream(), x, out);
    return rig_.get(out);
  }
  Residues apply(const Tensor& x, const Tensor& w, const Residues& s, std::int64_t features,
                 double eps = 1e-5) {
    const Tensor out = rig_.make(x.rows, x.cols);
    rig_.device().rms_apply(rig_.stream(), x, w, rig_.put(s), features, eps, out);
    return rig_.get(out);
  }
  /// The columns of `whole`.
  static Residues cut(const Residues& whole, std::int64_t begin, std::int64_t end) {
    Residues part{whole.rows, end - begin, {}};
    for (std::int64_t m = 0; m < whole.rows; ++m) {
      for (std::int64_t i = begin; i < end; ++i) part.values.push_back(whole(m, i));
    }
    return part;
  }
  Tensor x(std::int64_t begin, std::int64_t end) { return x_.col_range(begin, end); }
  Tensor w(std::int64_t begin, std::int64_t end) { return w_.col_range(begin, end); }

  FieldRig rig_;
  const Tensor x_ = rig_.put(random_residues(3, kFeatures, 1)),
               w_ = rig_.put(random_residues(1, kFeatures, 2));
  const Residues whole_ = rig_.rms_norm(x_, w_);
};

TEST_F(FieldRmsParts, AreTheNormOfTheWhole) {
  for (std::int64_t at = 0; at <= kFeatures; ++at) {
    const Residues s = sum(squares(x(0, at)), squares(x(at, kFeatures)));
    EXPECT_EQ(apply(x(0, at), w(0, at), s, kFeatures), cut(whole_, 0, at));
    EXPECT_EQ(apply(x(at, kFeatures), w(at, kFeatures), s, kFeatures), cut(whole_, at, kFeatures));
  }
}

TEST_F(FieldRmsParts, FaultsShow) {
  const Residues first = squares(x(0, 5)), second = squares(x(5, kFeatures)), s = sum(first, second);
  const Residues want = cut(whole_, 0, 5);
  EXPECT_EQ(apply(x(0, 5), w(0, 5), s, kFeatures), want);
  EXPECT_NE(apply(x(0, 5), w(0, 5), first, kFeatures), want);           // a shard's statistic
  EXPECT_NE(apply(x(0, 5), w(0, 5), s, 5), want);                       // a shard's length
  EXPECT_NE(apply(x(0, 5), w(0, 5), first, 5), want);                   // both: a norm of its own
  EXPECT_NE(apply(x(0, 5), w(0, 5), sum(s, second), kFeatures), want);  // a part counted twice
  EXPECT_NE(apply(x(0, 5), w(5, 10), s, kFeatures), want);              // another part's weight
  EXPECT_NE(apply(x(0, 5), w(0, 5), s, kFeatures, 1e-6), want);         // another eps
}

TEST_F(FieldRmsParts, AreKeyedByTheirPlaceAsTheNormIs) {
  const auto at = [&](const char* site, const auto& compute) {
    const NamedRange named = rig_.device().range(site);
    return compute();
  };
  const Residues s = squares(x_);
  const auto norm = [&] { return rig_.rms_norm(x_, w_); };
  const auto parts = [&] { return apply(x_, w_, s, kFeatures); };
  EXPECT_EQ(at("layers.0.self_attn.q_norm", norm), at("layers.0.self_attn.q_norm", parts));
  EXPECT_NE(at("layers.0.self_attn.q_norm", norm), at("layers.1.self_attn.q_norm", parts));
}

TEST_F(FieldRmsParts, AreCountedAsTheNormIs) {
  FieldRig other;
  const Tensor x = other.put(rig_.get(x_)), w = other.put(rig_.get(w_)), s = other.make(3, 1),
               out = other.make(3, kFeatures);
  other.device().square_sum(other.stream(), x, s);
  EXPECT_TRUE(other.device().counts().sites().empty());
  other.device().rms_apply(other.stream(), x, w, s, kFeatures, 1e-5, out);
  const auto counted = other.device().counts().sites(), whole = rig_.device().counts().sites();
  ASSERT_EQ(counted.size(), 1u);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(counted[0].function, whole[0].function);
  EXPECT_EQ(counted[0].calls, whole[0].calls);
  EXPECT_EQ(counted[0].degree, whole[0].degree);
}

TEST_F(FieldRmsParts, PoisonSpreads) {
  Residues stale = rig_.get(x_);
  stale(1, 3) = kPoison;
  const Residues s = squares(rig_.put(stale));
  EXPECT_EQ(s(1, 0), kPoison);
  EXPECT_NE(s(0, 0), kPoison);
  const Residues y = apply(x_, w_, s, kFeatures);
  for (std::int64_t i = 0; i < kFeatures; ++i) {
    EXPECT_EQ(y(1, i), kPoison);
    EXPECT_EQ(y(2, i), whole_(2, i));
  }
  EXPECT_EQ(squares(x(4, 4)), all(3, 1, 0));
}

}  // namespace
}  // namespace shardcheck
