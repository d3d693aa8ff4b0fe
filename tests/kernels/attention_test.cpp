// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cpu_rig.hpp"

namespace shardcheck {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  std::int64_t queries, keys, head_dim;
  std::vector<std::int32_t> heads;  // kv head of each q head
  std::int64_t kv_heads;
  AttentionShape shape;
};

Case make_case(std::int64_t queries, std::int64_t keys, std::int64_t head_dim, std::vector<std::int32_t> heads,
               std::int64_t q_first, std::int64_t window = 0, std::int64_t k_first = 0) {
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const std::int64_t kv_heads = *std::ranges::max_element(heads) + 1;
  return {queries, keys, head_dim, std::move(heads), kv_heads,
          {.head_dim = head_dim, .scale = scale, .q_first = q_first, .k_first = k_first, .window = window}};
}

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

bool sees(const Case& c, std::int64_t query, std::int64_t key) {
  const std::int64_t distance = c.shape.q_first + query - c.shape.k_first - key;
  return distance >= 0 && (c.shape.window == 0 || distance < c.shape.window);
}

/// Softmax attention row by row in f64. Budget per head, with A = sum_j p_j |v_j| and S keys:
/// u_out |y| + u_acc A (4 + 2 scale sqrt(d) max_j ||q k_j||_2 + sqrt(S) + max_j |score_j|) + half an ulp of underflow,
/// + min_normal(f32) sum |v| for weights that vanish.
Twin attention_twin(const Case& c, const Matrix& q, const Matrix& k, const Matrix& v, DType dtype) {
  const DType acc = accumulate_dtype(dtype);
  const double smallest = std::exp2(info(acc).min_exponent);
  const std::int64_t d = c.head_dim;
  Twin twin;
  for (std::int64_t i = 0; i < c.queries; ++i) {
    for (std::size_t h = 0; h < c.heads.size(); ++h) {
      const std::int64_t q0 = static_cast<std::int64_t>(h) * d, k0 = c.heads[h] * d;
      std::vector<double> weight(static_cast<std::size_t>(c.keys));
      double highest = -kInfinity, largest_score = 0, largest_products = 0, sum = 0, seen = 0;
      for (std::int64_t j = 0; j < c.keys; ++j) {
        double score = 0, squares = 0;
        for (std::int64_t e = 0; e < d; ++e) {
          const double product = q(i, q0 + e) * k(j, k0 + e);
          score += product;
          squares += product * product;
        }
        score *= c.shape.scale;
        weight[static_cast<std::size_t>(j)] = score;
        if (!sees(c, i, j)) continue;
        seen += 1;
        highest = std::max(highest, score);
        largest_score = std::max(largest_score, std::abs(score));
        largest_products = std::max(largest_products, std::sqrt(squares));
      }
      for (std::int64_t j = 0; j < c.keys; ++j) {
        double& w = weight[static_cast<std::size_t>(j)];
        w = sees(c, i, j) ? std::exp(w - highest) : 0;
        sum += w;
      }
      for (std::int64_t e = 0; e < d; ++e) {
        double y = 0, a = 0, magnitude = 0;
        for (std::int64_t j = 0; j < c.keys; ++j) {
          const double w = weight[static_cast<std::size_t>(j)] / sum, x = sees(c, i, j) ? v(j, k0 + e) : 0;
          y += w * x;
          a += w * std::abs(x);
          magnitude += std::abs(x);
        }
        const double score_terms = 2 * c.shape.scale * std::sqrt(static_cast<double>(d)) * largest_products;
        twin.add(y, unit_roundoff(dtype) * std::abs(y) +
                        unit_roundoff(acc) * a * (4 + score_terms + std::sqrt(seen) + largest_score) +
                        half_min_subnormal(dtype) + smallest * magnitude);
      }
    }
  }
  return twin;
}

class AttentionTest : public testing::TestWithParam<DType> {
 protected:
  AttentionState make_state(std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                            Layout layout = Layout::dense) {
    const DType acc = accumulate_dtype(GetParam());
    return {.max = rig_.make(acc, rows, heads, layout),
            .sum = rig_.make(acc, rows, heads, layout),
            .acc = rig_.make(acc, rows, heads * head_dim, layout)};
  }

  AttentionState partial(const Case& c, const Tensor& q, const Tensor& k, const Tensor& v,
                         Layout layout = Layout::dense) {
    const auto heads = static_cast<std::int64_t>(c.heads.size());
    AttentionState state = make_state(q.rows, heads, c.head_dim, layout);
    rig_.device().attention_partial(rig_.stream(), q, k, v, c.heads, c.shape, state);
    return state;
  }

  HostTensor finish(const AttentionState& state, std::int64_t head_dim, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(GetParam(), state.acc.rows, state.acc.cols, layout);
    rig_.device().attention_finish(rig_.stream(), state, head_dim, out);
    return rig_.get(out);
  }

  HostTensor whole(const Case& c, const Tensor& q, const Tensor& k, const Tensor& v) {
    return finish(partial(c, q, k, v), c.head_dim);
  }

  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return random_matrix(GetParam(), rows, cols, seed);
  }
  Matrix queries(const Case& c) { return random(c.queries, std::ssize(c.heads) * c.head_dim, 1); }
  Matrix keys(const Case& c) { return random(c.keys, c.kv_heads * c.head_dim, 2); }
  Matrix values(const Case& c) { return random(c.keys, c.kv_heads * c.head_dim, 3); }

  CpuRig rig_;
};

TEST_P(AttentionTest, AgreesWithTheTwinInAnyLayout) {
  for (const Case& c : cases()) {
    const Matrix q = queries(c), k = keys(c), v = values(c);
    const HostTensor dense = whole(c, rig_.put(GetParam(), q), rig_.put(GetParam(), k), rig_.put(GetParam(), v));
    EXPECT_TRUE(within_budget(dense, attention_twin(c, q, k, v, GetParam()))) << c.queries << " of " << c.keys;
    for (const Layout layout : kLayouts) {
      const AttentionState state = partial(c, rig_.put(GetParam(), q, layout), rig_.put(GetParam(), k, layout),
                                           rig_.put(GetParam(), v, layout), layout);
      EXPECT_TRUE(finish(state, c.head_dim, layout).bitwise_equal(dense));
    }
  }
}

TEST_P(AttentionTest, PlantedFaultsExceedTheBudget) {
  const Case c = make_case(20, 30, 16, {0, 0, 1}, 10);
  const Matrix q = queries(c), k = keys(c), v = values(c);
  const Tensor dq = rig_.put(GetParam(), q), dk = rig_.put(GetParam(), k), dv = rig_.put(GetParam(), v);
  const Twin twin = attention_twin(c, q, k, v, GetParam());
  ASSERT_TRUE(within_budget(whole(c, dq, dk, dv), twin));
  Case wrong = c;
  wrong.heads[1] = 1;  // the neighbour's kv head
  EXPECT_FALSE(within_budget(whole(wrong, dq, dk, dv), twin));
  wrong = c;
  wrong.shape.q_first += 1;  // one future key
  EXPECT_FALSE(within_budget(whole(wrong, dq, dk, dv), twin));
  wrong = c;
  wrong.shape.window = 12;
  EXPECT_FALSE(within_budget(whole(wrong, dq, dk, dv), twin));
  wrong = c;
  wrong.shape.scale *= 1.0625;
  EXPECT_FALSE(within_budget(whole(wrong, dq, dk, dv), twin));
}

TEST_P(AttentionTest, KeySplitsMergeToTheWhole) {
  for (const Case& c : cases()) {
    const Matrix q = queries(c), k = keys(c), v = values(c);
    const Tensor dq = rig_.put(GetParam(), q), dk = rig_.put(GetParam(), k), dv = rig_.put(GetParam(), v);
    const Twin twin = attention_twin(c, q, k, v, GetParam());
    const std::int64_t third = c.keys / 3;
    const std::int64_t cuts[] = {0, third, third, 2 * third + 1, c.keys};  // the second part is empty
    AttentionState merged = make_state(c.queries, std::ssize(c.heads), c.head_dim);
    for (int part = 3; part >= 0; --part) {  // late keys first: early queries see nothing of them
      Case piece = c;
      piece.shape.k_first += std::min(cuts[part], c.keys);
      const std::int64_t end = std::max(cuts[part], std::min(cuts[part + 1], c.keys));
      const AttentionState state =
          partial(piece, dq, dk.row_range(cuts[part], end), dv.row_range(cuts[part], end));
      if (part == 3) {
        merged = state;
      } else {
        rig_.device().attention_merge(rig_.stream(), state, merged);
      }
    }
    EXPECT_TRUE(within_budget(finish(merged, c.head_dim), twin)) << c.queries << " of " << c.keys;
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
  rig_.device().attention_merge(rig_.stream(), partial(c, q, k.row_range(0, 0), v.row_range(0, 0)), nothing);
  EXPECT_EQ(rig_.get(nothing.sum).at(0), 0);
}

TEST_P(AttentionTest, AQuerysBitsDependOnItsOwnRowAndKeysAlone) {
  const Case c = make_case(70, 330, 16, {0, 1, 1}, 260);
  const Tensor q = rig_.put(GetParam(), queries(c)), k = rig_.put(GetParam(), keys(c)),
               v = rig_.put(GetParam(), values(c));
  const AttentionState all = partial(c, q, k, v);
  for (const std::int64_t i : {0, 31, 33, 69}) {
    Case one = c;
    one.shape.q_first += i;
    // Keys behind the query's position are left out: they were masked before.
    const std::int64_t end = one.shape.q_first + 1;
    const AttentionState alone = partial(one, q.row_range(i, i + 1), k.row_range(0, end), v.row_range(0, end));
    EXPECT_TRUE(rig_.get(alone.acc).bitwise_equal(rig_.get(all.acc.row_range(i, i + 1)))) << i;
    EXPECT_TRUE(rig_.get(alone.sum).bitwise_equal(rig_.get(all.sum.row_range(i, i + 1)))) << i;
  }
  Case last_head = c;
  last_head.heads = {0};  // of the second kv head alone
  const AttentionState head = partial(last_head, q.col_range(32, 48), k.col_range(16, 32), v.col_range(16, 32));
  EXPECT_TRUE(rig_.get(head.acc).bitwise_equal(rig_.get(all.acc.col_range(32, 48))));
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

TEST_P(AttentionTest, EqualScoresOfFourKeysAverageExactly) {
  Case c = make_case(1, 4, 8, {0}, 3);
  const Matrix q{1, 8, std::vector<double>(8, 0.0)}, k = keys(c), v = integer_matrix(4, 8, 9, 30);
  Matrix mean{1, 8, {}};
  for (int e = 0; e < 8; ++e) mean.values.push_back((v(0, e) + v(1, e) + v(2, e) + v(3, e)) / 4);
  const HostTensor y = whole(c, rig_.put(GetParam(), q), rig_.put(GetParam(), k), rig_.put(GetParam(), v));
  EXPECT_TRUE(y.bitwise_equal(exactly(GetParam(), mean)));
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
