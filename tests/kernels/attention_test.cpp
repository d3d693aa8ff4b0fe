// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/attention_rig.hpp"

namespace shardcheck {
namespace {

using Case = AttentionCase;

// Around the tiles (32 queries, 256 keys, four rows, eight lanes), prompts, chunks, decode, windows, odd heads.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      make_case(1, 1, 2, {0}, 0),
      make_case(5, 5, 6, {0, 0, 1}, 0),
      make_case(1, 300, 64, {0, 0, 0, 1}, 299),
      make_case(33, 33, 8, {1, 0}, 0),
      make_case(70, 330, 16, {0, 1, 1}, 260),
      make_case(40, 300, 7, {0, 0}, 260, 9),
      make_case(9, 9, 64, {0}, 0, 3),
      make_case(6, 270, 12, {0, 1}, 400, 200, 137),
  };
  return all;
}

TEST_P(AttentionTest, AgreesWithTheTwinInAnyLayout) {
  for (const Case& c : cases()) {
    const Matrix q = queries(c), k = keys(c), v = values(c);
    const HostTensor dense = whole(c, rig_.put(GetParam(), q), rig_.put(GetParam(), k),
                                   rig_.put(GetParam(), v));
    EXPECT_TRUE(within_budget(dense, want(c, q, k, v))) << c.queries << " of " << c.keys;
    for (const Layout layout : kLayouts) {
      const AttentionState state = partial(c, rig_.put(GetParam(), q, layout),
                                           rig_.put(GetParam(), k, layout),
                                           rig_.put(GetParam(), v, layout), layout);
      EXPECT_TRUE(finish(state, c.head_dim, layout).bitwise_equal(dense));
    }
  }
}

TEST_P(AttentionTest, PlantedFaultsExceedTheBudget) {
  const Case c = make_case(20, 30, 16, {0, 0, 1}, 10);
  const Matrix q = queries(c), k = keys(c), v = values(c);
  const Tensor dq = rig_.put(GetParam(), q), dk = rig_.put(GetParam(), k),
               dv = rig_.put(GetParam(), v);
  const twin::Answer answer = want(c, q, k, v);
  ASSERT_TRUE(within_budget(whole(c, dq, dk, dv), answer));
  Case wrong = c;
  wrong.heads[1] = 1;  // the neighbour's kv head
  EXPECT_FALSE(within_budget(whole(wrong, dq, dk, dv), answer));
  wrong = c;
  wrong.shape.q_first += 1;  // one future key
  EXPECT_FALSE(within_budget(whole(wrong, dq, dk, dv), answer));
  wrong = c;
  wrong.shape.window = 12;
  EXPECT_FALSE(within_budget(whole(wrong, dq, dk, dv), answer));
  wrong = c;
  wrong.shape.scale *= 1.0625;
  EXPECT_FALSE(within_budget(whole(wrong, dq, dk, dv), answer));
}

TEST_P(AttentionTest, KeySplitsMergeToTheWhole) {
  for (const Case& c : cases()) {
    const Matrix q = queries(c), k = keys(c), v = values(c);
    const Tensor dq = rig_.put(GetParam(), q), dk = rig_.put(GetParam(), k),
                 dv = rig_.put(GetParam(), v);
    const twin::Answer answer = want(c, q, k, v);
    const std::int64_t third = c.keys / 3;
    const std::int64_t cuts[] = {0, third, third, 2 * third + 1, c.keys};  // the second part is empty
    AttentionState merged = make_state(c.queries, std::ssize(c.heads), c.head_dim);
    for (int part = 3; part >= 0; --part) {  // late keys first: early queries see nothing of them
      Case piece = c;
      piece.shape.k_first += std::min(cuts[part], c.keys);
      const std::int64_t end = std::max(cuts[part], std::min(cuts[part + 1], c.keys));
      const AttentionState state = partial(piece, dq, dk.row_range(cuts[part], end),
                                           dv.row_range(cuts[part], end));
      if (part == 3) {
        merged = state;
      } else {
        rig_.device().attention_merge(rig_.stream(), state, merged);
      }
    }
    EXPECT_TRUE(within_budget(finish(merged, c.head_dim), answer)) << c.queries << " of " << c.keys;
  }
}

TEST_P(AttentionTest, AnEmptyStretchIsTheNeutralState) {
  const Case c = make_case(5, 5, 6, {0, 0, 1}, 0);
  const Tensor q = rig_.put(GetParam(), queries(c)), k = rig_.put(GetParam(), keys(c)),
               v = rig_.put(GetParam(), values(c));
  const AttentionState empty = partial(c, q, k.row_range(0, 0), v.row_range(0, 0));
  for (const double max : rig_.get(empty.max).to_f64()) EXPECT_EQ(max, -kInfinity);
  for (const double sum : rig_.get(empty.sum).to_f64()) EXPECT_EQ(sum, 0);
  for (const double acc : rig_.get(empty.acc).to_f64()) EXPECT_EQ(acc, 0);
  const AttentionState full = partial(c, q, k, v), also_full = partial(c, q, k, v);
  rig_.device().attention_merge(rig_.stream(), empty, full);
  EXPECT_TRUE(rig_.get(full.acc).bitwise_equal(rig_.get(also_full.acc)));
  EXPECT_TRUE(rig_.get(full.sum).bitwise_equal(rig_.get(also_full.sum)));
  rig_.device().attention_merge(rig_.stream(), full, empty);
  EXPECT_TRUE(rig_.get(empty.acc).bitwise_equal(rig_.get(also_full.acc)));
  EXPECT_TRUE(rig_.get(empty.max).bitwise_equal(rig_.get(also_full.max)));
  const AttentionState nothing = partial(c, q, k.row_range(0, 0), v.row_range(0, 0));
  rig_.device().attention_merge(rig_.stream(), partial(c, q, k.row_range(0, 0), v.row_range(0, 0)),
                                nothing);
  EXPECT_EQ(rig_.get(nothing.sum).at(0), 0);
}

TEST_P(AttentionTest, MaskedKeysAreNeverRead) {
  const Case c = make_case(7, 7, 8, {0, 0}, 0, 4);
  const Matrix k = keys(c), v = values(c);
  Matrix bad_k = k, bad_v = v;
  for (std::size_t e = 0; e < 8; ++e) {
    bad_k.values[5 * 8 + e] = std::numeric_limits<double>::quiet_NaN();
    bad_v.values[5 * 8 + e] = kInfinity;
  }
  const Tensor q = rig_.put(GetParam(), queries(c));
  const Tensor good = partial(c, q, rig_.put(GetParam(), k), rig_.put(GetParam(), v)).acc;
  const Tensor bad = partial(c, q, rig_.put(GetParam(), bad_k), rig_.put(GetParam(), bad_v)).acc;
  EXPECT_TRUE(rig_.get(bad.row_range(0, 5)).bitwise_equal(rig_.get(good.row_range(0, 5))));
  for (const double x : rig_.get(bad.row_range(5, 7)).to_f64()) EXPECT_TRUE(std::isnan(x));
}

TEST_P(AttentionTest, OneVisibleKeyIsItsValue) {
  const Case c = make_case(4, 4, 8, {0, 1}, 0, 1);  // each query sees itself
  const Matrix v = values(c);
  const HostTensor y = whole(c, rig_.put(GetParam(), queries(c)), rig_.put(GetParam(), keys(c)),
                             rig_.put(GetParam(), v));
  EXPECT_TRUE(y.bitwise_equal(exactly(GetParam(), v)));
}

TEST_P(AttentionTest, WithoutQueriesToTellThemApartKeysAverageExactly) {
  // Zero queries: every score is 0, every weight 1. With a window of a power of two the mean of integers is exact.
  for (const std::int64_t window : {1, 2, 4, 64, 256}) {
    for (const std::int64_t queries : {1, 5, 37}) {
      const std::int64_t keys = window + queries - 1;
      const Case c = make_case(queries, keys, 8, {0, 1, 0}, window - 1, window);
      const Matrix q{queries, 24, std::vector<double>(static_cast<std::size_t>(queries * 24), 0.0)};
      const Matrix k = this->keys(c), v = integer_matrix(keys, 16, 9, 30);
      Matrix mean{queries, 24, {}};
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t column = 0; column < 24; ++column) {
          double sum = 0;
          for (std::int64_t j = i; j < i + window; ++j)
            sum += v(j, c.heads[static_cast<std::size_t>(column / 8)] * 8 + column % 8);
          mean.values.push_back(sum / static_cast<double>(window));
        }
      }
      const HostTensor y = whole(c, rig_.put(GetParam(), q), rig_.put(GetParam(), k),
                                 rig_.put(GetParam(), v));
      EXPECT_TRUE(y.bitwise_equal(exactly(GetParam(), mean))) << queries << " of " << keys;
      EXPECT_FALSE(with_flipped_bit(y, 3, 1).bitwise_equal(exactly(GetParam(), mean)));
    }
  }
}

TEST_P(AttentionTest, WithoutQueriesOrHeadsNothingHappens) {
  const Case c = make_case(5, 5, 6, {0}, 0);
  const Tensor k = rig_.put(GetParam(), keys(c)), v = rig_.put(GetParam(), values(c));
  EXPECT_EQ(partial(c, rig_.make(GetParam(), 0, 6), k, v).acc.rows, 0);
  Case no_heads = c;
  no_heads.heads.clear();
  EXPECT_EQ(whole(no_heads, rig_.make(GetParam(), 5, 0), k, v).elements(), 0);
}

INSTANTIATE_TEST_SUITE_P(Storage, AttentionTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

}  // namespace
}  // namespace shardcheck
