// SPDX-License-Identifier: Apache-2.0
// Attention at the borders that a tiled implementation has: head sizes, lists of heads, few queries against many keys,
// windows that begin and end inside a tile.
#include <numeric>

#include "tests/kernels/attention_rig.hpp"

namespace shardcheck {
namespace {

using Case = AttentionCase;

/// `count` q heads of which each `group` neighbours share a kv head.
std::vector<std::int32_t> shared_heads(std::int32_t count, std::int32_t group) {
  std::vector<std::int32_t> heads;
  for (std::int32_t head = 0; head < count; ++head) heads.push_back(head / group);
  return heads;
}

class AttentionShapesTest : public AttentionTest {
 protected:
  void agrees(const Case& c, const std::string& what) {
    const Matrix q = queries(c), k = keys(c), v = values(c);
    const HostTensor y = whole(c, rig_.put(GetParam(), q), rig_.put(GetParam(), k),
                               rig_.put(GetParam(), v));
    EXPECT_TRUE(within_budget(y, want(c, q, k, v))) << what;
  }

  /// The state against keys of which `hidden` are NaN and infinite equals that against good ones, bit for bit.
  void ignores(const Case& c, const std::vector<std::int64_t>& hidden, const std::string& what) {
    const Matrix k = keys(c), v = values(c);
    Matrix bad_k = k, bad_v = v;
    for (const std::int64_t key : hidden) {
      for (std::int64_t e = 0; e < k.cols; ++e) {
        bad_k.values[static_cast<std::size_t>(key * k.cols + e)] = std::numeric_limits<double>::quiet_NaN();
        bad_v.values[static_cast<std::size_t>(key * k.cols + e)] = kInfinity;
      }
    }
    const Tensor q = rig_.put(GetParam(), queries(c));
    const AttentionState good = partial(c, q, rig_.put(GetParam(), k), rig_.put(GetParam(), v));
    const AttentionState bad = partial(c, q, rig_.put(GetParam(), bad_k), rig_.put(GetParam(), bad_v));
    EXPECT_TRUE(rig_.get(bad.max).bitwise_equal(rig_.get(good.max))) << what;
    EXPECT_TRUE(rig_.get(bad.sum).bitwise_equal(rig_.get(good.sum))) << what;
    EXPECT_TRUE(rig_.get(bad.acc).bitwise_equal(rig_.get(good.acc))) << what;
  }
};

TEST_P(AttentionShapesTest, AnyHeadSizeForManyAndFewQueries) {
  for (const std::int64_t head_dim : {1, 31, 40, 65, 80, 128, 192, 256, 257, 300}) {
    for (const std::int64_t many : {3, 11}) {
      agrees(make_case(many, 37, head_dim, {0, 0}, 37 - many), "head_dim " + std::to_string(head_dim));
    }
  }
}

TEST_P(AttentionShapesTest, AnyListOfHeads) {
  const std::vector<std::vector<std::int32_t>> lists = {
      {0, 1, 0},           {2, 0, 1, 0, 2},      shared_heads(9, 9),
      shared_heads(12, 3), shared_heads(131, 1), shared_heads(140, 140)};
  for (const auto& heads : lists) {
    for (const std::int64_t many : {1, 2, 9}) {
      agrees(make_case(many, 12, 4, heads, 12 - many), std::to_string(heads.size()) + " heads");
    }
  }
}

TEST_P(AttentionShapesTest, FewQueriesAgainstAnyNumberOfKeys) {
  for (const std::int64_t keys : {2, 31, 32, 33, 127, 129, 500}) {
    for (const std::int64_t many : {1, 4, 8, 9}) {
      if (many > keys) continue;
      agrees(make_case(many, keys, 8, {0, 0, 0, 1}, keys - many), std::to_string(keys) + " keys");
      agrees(make_case(many, keys, 8, {0, 1}, keys - many, 40),
             std::to_string(keys) + " keys in a window");
    }
  }
}

TEST_P(AttentionShapesTest, AWindowLeavesATileFromOneQueryToTheNext) {
  constexpr std::int64_t kTile = 32, kWindow = 4;  // keys
  for (std::int64_t many = 2; many <= 8; ++many) {
    for (const std::int64_t border : {kTile, 3 * kTile}) {
      // The last query's window begins right at the border; those before it begin in the tile on the other side.
      const std::int64_t last = border + kWindow - 1;
      for (const auto& heads : {shared_heads(1, 1), shared_heads(4, 2)}) {
        const Case c = make_case(many, last + 1, 8, heads, last + 1 - many, kWindow);
        ASSERT_TRUE(twin::sees(c.shape, many - 2, border - 1));
        ASSERT_FALSE(twin::sees(c.shape, many - 1, border - 1));
        agrees(c, std::to_string(many) + " queries, border " + std::to_string(border) + ", " +
                      std::to_string(heads.size()) + " heads");
      }
    }
  }
}

TEST_P(AttentionShapesTest, MoreKeysThanStretches) {
  const std::int64_t keys = small_shapes() ? 8300 : 40000;  // more than one key for each lane of each stretch
  agrees(make_case(1, keys, 2, {0}, keys - 1), "one query");
  agrees(make_case(2, keys, 2, {0, 0}, keys - 2, 100), "a window near the end");
}

TEST_P(AttentionShapesTest, KeysThatNobodySeesLeaveNoTrace) {
  for (const std::int64_t many : {4, 20}) {
    // Positions 40.. of 70 keys: those behind the last query, those before the window of the first.
    Case c = make_case(many, 70, 8, {0, 0, 1}, 40);
    std::vector<std::int64_t> hidden(static_cast<std::size_t>(70 - 40 - many));
    std::iota(hidden.begin(), hidden.end(), 40 + many);
    ignores(c, hidden, "causal");
    c.shape.window = 6;
    for (std::int64_t key = 0; key < 40 - 5; ++key) hidden.push_back(key);
    ignores(c, hidden, "window");
  }
}

TEST_P(AttentionShapesTest, AKeyReachesTheQueriesThatSeeItAlone) {
  for (const std::int64_t many : {5, 40}) {
    for (const std::int64_t window : {0, 3}) {
      const Case c = make_case(many, 44, 6, {0, 1, 1}, 44 - many, window);
      const Matrix v = values(c);
      for (const std::int64_t key : {std::int64_t{40}, 44 - many}) {
        Matrix bad = v;
        for (std::int64_t e = 0; e < v.cols; ++e) {
          bad.values[static_cast<std::size_t>(key * v.cols + e)] = std::numeric_limits<double>::quiet_NaN();
        }
        const AttentionState state = partial(c, rig_.put(GetParam(), queries(c)),
                                             rig_.put(GetParam(), keys(c)), rig_.put(GetParam(), bad));
        const std::vector<double> acc = rig_.get(state.acc).to_f64();
        for (std::size_t i = 0; i < acc.size(); ++i) {
          const auto row = static_cast<std::int64_t>(i) / state.acc.cols;
          EXPECT_EQ(std::isnan(acc[i]), twin::sees(c.shape, row, key))
              << "row " << row << ", key " << key;
        }
      }
    }
  }
}

TEST_P(AttentionShapesTest, QueriesOfZeroAverageIntegersExactly) {
  for (const std::int64_t many : {1, 12}) {
    Case c = make_case(many, 128, 20, {0, 1, 1}, 200);  // every query sees every key
    const Matrix q{many, 60, std::vector<double>(static_cast<std::size_t>(many * 60), 0.0)};
    const Matrix v = integer_matrix(128, 40, 5, 16);
    Matrix mean{many, 60, {}};
    for (std::int64_t i = 0; i < many; ++i) {
      for (std::int64_t col = 0; col < 60; ++col) {
        double sum = 0;
        for (std::int64_t key = 0; key < 128; ++key) {
          sum += v(key, c.heads[static_cast<std::size_t>(col / 20)] * 20 + col % 20);
        }
        mean.values.push_back(sum / 128);
      }
    }
    const HostTensor y = whole(c, rig_.put(GetParam(), q), rig_.put(GetParam(), keys(c)),
                               rig_.put(GetParam(), v));
    EXPECT_TRUE(y.bitwise_equal(exactly(GetParam(), mean))) << many << " queries";
  }
}

TEST_P(AttentionShapesTest, AQuerysBitsDoNotDependOnItsNeighbours) {
  for (const std::int64_t many : {6, 90}) {
    const Case c = make_case(many, 140, 10, {0, 0, 1}, 140 - many);
    const Matrix q = queries(c);
    const Tensor k = rig_.put(GetParam(), keys(c)), v = rig_.put(GetParam(), values(c));
    Matrix changed = q;
    for (std::int64_t e = 0; e < q.cols; ++e)
      changed.values[static_cast<std::size_t>(e)] += 1;  // of query 0
    const Tensor before = partial(c, rig_.put(GetParam(), q), k, v).acc;
    const Tensor after = partial(c, rig_.put(GetParam(), changed), k, v).acc;
    EXPECT_TRUE(rig_.get(before.row_range(1, many)).bitwise_equal(rig_.get(after.row_range(1, many))));
    EXPECT_FALSE(rig_.get(before.row_range(0, 1)).bitwise_equal(rig_.get(after.row_range(0, 1))));
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, AttentionShapesTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

}  // namespace
}  // namespace shardcheck
