// SPDX-License-Identifier: Apache-2.0
// Over the field, a computation that is cut in any way equals the whole in every bit, and one that is cut wrongly
// does not.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <optional>

#include "tests/kernels/field_rig.hpp"

namespace shardcheck {
namespace {

using field::kPoison;
using field::kPrime;
using field::Residue;
using field::Wide;

std::int64_t between(std::int64_t lo, std::int64_t hi) {
  return *rc::gen::inRange<std::int64_t>(lo, hi + 1);
}
std::uint64_t any_seed() { return *rc::gen::arbitrary<std::uint64_t>(); }

/// [0, n) cut at random places, empty pieces included.
Owned random_cut(std::int64_t n) {
  auto cuts = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, n + 1));
  cuts.push_back(0);
  cuts.push_back(n);
  std::ranges::sort(cuts);
  Owned pieces;
  for (std::size_t i = 1; i < cuts.size(); ++i) pieces.emplace_back(cuts[i - 1], cuts[i]);
  return pieces;
}

/// The naive twin: one modulo after every product.
Residues naive_linear(const Residues& x, const Residues& w) {
  Residues out{x.rows, w.rows, std::vector<std::uint64_t>(static_cast<std::size_t>(x.rows * w.rows))};
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t n = 0; n < w.rows; ++n) {
      Wide sum = 0;
      for (std::int64_t k = 0; k < x.cols; ++k)
        sum = (sum + Wide{x(m, k)} * w(n, k) % kPrime) % kPrime;
      out(m, n) = static_cast<std::uint64_t>(sum);
    }
  }
  return out;
}

RC_GTEST_PROP(FieldLinear, IsTheTwin, ()) {
  FieldRig rig;
  const std::int64_t m = between(1, 4), k = between(1, 200), n = between(1, 9);
  const Residues x = random_residues(m, k, any_seed()), w = random_residues(n, k, any_seed());
  RC_ASSERT(rig.linear(rig.put(x), rig.put(w)) == naive_linear(x, w));
}

TEST(FieldLinear, DoesNotOverflowOnTheLargestResidues) {
  FieldRig rig;
  for (const std::int64_t k : {1, 59, 60, 61, 64, 120, 121, 4096}) {
    const Residues x = all(2, k, kPrime - 1), w = all(5, k, kPrime - 1);
    EXPECT_EQ(rig.linear(rig.put(x), rig.put(w)), naive_linear(x, w)) << k;
  }
}

RC_GTEST_PROP(FieldLinear, SharesOfKSumToTheWhole, ()) {
  FieldRig rig;
  const std::int64_t m = between(1, 3), k = between(1, 100), n = between(1, 6);
  const Tensor x = rig.put(random_residues(m, k, any_seed())),
               w = rig.put(random_residues(n, k, any_seed()));
  const Residues whole = rig.linear(x, w);
  Residues total = all(m, n, 0), without_first = total;
  bool first = true;
  for (const auto& [begin, end] : random_cut(k)) {
    const Residues share = rig.linear(x.col_range(begin, end), w.col_range(begin, end));
    total = sum(total, share);
    if (begin == end) continue;
    if (!first) without_first = sum(without_first, share);
    first = false;
  }
  RC_ASSERT(total == whole);
  RC_ASSERT(without_first != whole);  // planted: a rank's share is lost
}

RC_GTEST_PROP(FieldLinear, RowsOfAShardAreThoseOfTheWhole, ()) {
  FieldRig rig;
  const std::int64_t k = between(1, 70), n = between(2, 12);
  const Tensor x = rig.put(random_residues(2, k, any_seed())),
               w = rig.put(random_residues(n, k, any_seed()));
  const Tensor bias = rig.put(random_residues(1, n, any_seed()));
  const Residues whole = rig.linear(x, w, &bias);
  for (const auto& [begin, end] : random_cut(n)) {
    if (begin == end) continue;
    const Tensor rows = bias.col_range(begin, end);
    const Residues shard = rig.linear(x, w.row_range(begin, end), &rows);
    for (std::int64_t j = begin; j < end; ++j) RC_ASSERT(shard(1, j - begin) == whole(1, j));
    const Residue twice = Residue{shard(0, 0)} + Residue{rig.get(rows)(0, 0)};
    RC_ASSERT(twice.bits != whole(0, begin));  // planted: the bias counted again
  }
}

RC_GTEST_PROP(FieldAttention, KeySplitsMergeToTheWhole, ()) {
  FieldRig rig(any_seed());
  const std::int64_t d = 2 * between(1, 3), keys = between(2, 12), rows = between(1, keys),
                     window = between(0, 5);
  const std::vector<std::int32_t> heads{0, 0, 1};
  const Tensor q = rig.put(random_residues(rows, 3 * d, any_seed()));
  const Tensor k = rig.put(random_residues(keys, 2 * d, any_seed())),
               v = rig.put(random_residues(keys, 2 * d, any_seed()));
  const AttentionShape shape{.head_dim = d, .scale = 0.5, .q_first = keys - rows, .window = window};
  const Residues whole = rig.finish(rig.attend(q, k, v, heads, shape), d);

  Owned pieces = random_cut(keys);
  if (*rc::gen::arbitrary<bool>()) std::ranges::reverse(pieces);  // ranks may arrive in any order
  std::optional<AttentionState> merged, unscaled;
  for (const auto& [begin, end] : pieces) {
    AttentionShape part = shape;
    part.k_first = begin;
    const auto state = [&] {
      return rig.attend(q, k.row_range(begin, end), v.row_range(begin, end), heads, part);
    };
    if (!merged) {
      merged = state();
    } else {
      rig.device().attention_merge(rig.stream(), state(), *merged);
    }
  }
  RC_ASSERT(rig.finish(*merged, d) == whole);
  RC_ASSERT(rig.device().counts().zero_denominators() == 0);
}

class FieldAttentionFaults : public testing::Test {
 protected:
  static constexpr std::int64_t kDim = 4, kKeys = 9;
  FieldRig rig_{7};
  std::vector<std::int32_t> heads_{0, 1};
  Tensor q_ = rig_.put(random_residues(3, 2 * kDim, 1)),
         k_ = rig_.put(random_residues(kKeys, 2 * kDim, 2)),
         v_ = rig_.put(random_residues(kKeys, 2 * kDim, 3));
  AttentionShape shape_{.head_dim = kDim, .scale = 0.5, .q_first = 6, .window = 5};
  Residues whole_ = rig_.finish(rig_.attend(q_, k_, v_, heads_, shape_), kDim);

  AttentionState part(std::int64_t begin, std::int64_t end, std::int64_t k_first) {
    AttentionShape shape = shape_;
    shape.k_first = k_first;
    return rig_.attend(q_, k_.row_range(begin, end), v_.row_range(begin, end), heads_, shape);
  }
  Residues merged(const AttentionState& a, const AttentionState& b) {
    rig_.device().attention_merge(rig_.stream(), a, b);
    return rig_.finish(b, kDim);
  }
};

TEST_F(FieldAttentionFaults, ShowWhenKeysAreMisplacedOrLostOrCountedTwice) {
  EXPECT_EQ(merged(part(0, 5, 0), part(5, 9, 5)), whole_);
  EXPECT_NE(merged(part(0, 5, 0), part(5, 9, 4)), whole_);
  EXPECT_NE(merged(part(0, 5, 0), part(6, 9, 6)), whole_);
  EXPECT_NE(merged(part(0, 6, 0), part(5, 9, 5)), whole_);
}

TEST_F(FieldAttentionFaults, ShowWhenSharesAreAddedWithoutTheirMaximum) {
  const AttentionState a = part(0, 5, 0), b = part(5, 9, 5);
  rig_.device().add(rig_.stream(), a.sum, b.sum, b.sum);
  rig_.device().add(rig_.stream(), a.acc, b.acc, b.acc);
  EXPECT_NE(rig_.finish(b, kDim), whole_);
}

TEST_F(FieldAttentionFaults, ShowWhenWindowScaleOrHeadMapIsWrong) {
  AttentionShape window = shape_, scale = shape_;
  window.window = 6;
  scale.scale = 0.25;
  const std::vector<std::int32_t> swapped{1, 0};
  EXPECT_NE(rig_.finish(rig_.attend(q_, k_, v_, heads_, window), kDim), whole_);
  EXPECT_NE(rig_.finish(rig_.attend(q_, k_, v_, heads_, scale), kDim), whole_);
  EXPECT_NE(rig_.finish(rig_.attend(q_, k_, v_, swapped, shape_), kDim), whole_);
}

TEST_F(FieldAttentionFaults, ShowWhenStagesOfOneAttentionNameTwoPlaces) {
  const auto at = [&](const char* site) {
    const NamedRange named = rig_.device().range(site);
    return part(0, 5, 0);
  };
  const NamedRange named = rig_.device().range("layers.0.self_attn");
  const Residues whole = rig_.finish(rig_.attend(q_, k_, v_, heads_, shape_), kDim);
  EXPECT_EQ(merged(at("layers.0.self_attn.partial"), part(5, 9, 5)), whole);
  EXPECT_NE(merged(at("layers.1.self_attn"), part(5, 9, 5)), whole);
}

TEST_F(FieldAttentionFaults, ARowWithoutKeysIsPoisonAndCounted) {
  const AttentionState none = part(0, 0, 0);
  EXPECT_EQ(rig_.get(none.max), all(3, 2, 0));
  EXPECT_EQ(rig_.get(none.sum), all(3, 2, 0));
  EXPECT_EQ(merged(none, part(0, kKeys, 0)), whole_);
  EXPECT_EQ(rig_.device().counts().zero_denominators(), 0);
  EXPECT_EQ(rig_.finish(none, kDim), all(3, 2 * kDim, kPoison));
  EXPECT_EQ(rig_.device().counts().zero_denominators(), 6);
}

RC_GTEST_PROP(FieldVocabulary, CrossEntropyAndArgmaxOfShardsAreThoseOfTheWhole, ()) {
  FieldRig rig(any_seed());
  const std::int64_t rows = 3, vocabulary = between(2, 30);
  Residues values = random_residues(rows, vocabulary, any_seed());
  values(1, vocabulary - 1) = values(1, 0) = kPrime - 1;  // a tie: the lower index wins
  const Tensor logits = rig.put(values);
  const Tensor ids = rig.put_ids({between(0, vocabulary - 1), 0, vocabulary - 1});
  const Owned everything{{0, vocabulary}};
  const Residues whole = rig.loss(rig.entropy(logits, ids, everything));
  const auto best = [&](const Tensor& x, const Owned& owned) {
    const Tensor value = rig.make(rows, 1),
                 index = rig.device().allocate(rig.stream(), DType::i64, rows, 1);
    rig.device().argmax(rig.stream(), x, owned, value, index);
    return std::pair(rig.get(value), rig.get(index));
  };
  const auto [whole_value, whole_index] = best(logits, everything);

  std::optional<CrossEntropyState> merged;
  Residues value = all(rows, 1, 0), index = all(rows, 1, ~std::uint64_t{0});
  bool lost = false;
  std::optional<CrossEntropyState> without_first;
  for (const auto& [begin, end] : random_cut(vocabulary)) {
    const Owned owned{{begin, end}};
    const CrossEntropyState state = rig.entropy(logits.col_range(begin, end), ids, owned);
    if (begin != end && lost) {
      if (!without_first) {
        without_first = rig.entropy(logits.col_range(begin, end), ids, owned);
      } else {
        rig.device().cross_entropy_merge(rig.stream(), state, *without_first);
      }
    }
    lost |= begin != end;
    if (merged) {
      rig.device().cross_entropy_merge(rig.stream(), state, *merged);
    } else {
      merged = state;
    }
    const auto [v, i] = best(logits.col_range(begin, end), owned);
    for (std::int64_t row = 0; row < rows; ++row) {
      if (i(row, 0) == ~std::uint64_t{0}) continue;
      const bool take = index(row, 0) == ~std::uint64_t{0} || v(row, 0) > value(row, 0);
      if (!take) continue;
      value(row, 0) = v(row, 0);
      index(row, 0) = i(row, 0);
    }
  }
  RC_ASSERT(rig.loss(*merged) == whole);
  RC_ASSERT(value == whole_value);
  RC_ASSERT(index == whole_index);
  RC_ASSERT(index(1, 0) == 0u);
  if (without_first) RC_ASSERT(rig.loss(*without_first) != whole);  // planted: a shard is lost
  RC_ASSERT(rig.loss(rig.entropy(logits, rig.put_ids({0, 1, 0}), everything)) !=
            whole);  // planted: other targets
}

TEST(FieldVocabulary, EmbeddingOfShardsSumsToTheWhole) {
  FieldRig rig;
  const Tensor table = rig.put(random_residues(10, 3, 1)), ids = rig.put_ids({0, 9, 4, 3});
  const auto rows = [&](std::int64_t begin, std::int64_t end, const Owned& owned) {
    const Tensor out = rig.make(4, 3);
    rig.device().embedding(rig.stream(), ids, table.row_range(begin, end), owned, out);
    return rig.get(out);
  };
  const Residues whole = rows(0, 10, {{0, 10}});
  EXPECT_EQ(sum(rows(0, 4, {{0, 4}}), rows(4, 10, {{4, 10}})), whole);
  EXPECT_NE(sum(rows(0, 4, {{0, 4}}), rows(4, 10, {{3, 9}})), whole);  // planted: the range is off by one
}

TEST(FieldReduce, AnyOrderGivesTheSameSumAndMaximum) {
  FieldRig rig;
  std::vector<Tensor> terms;
  Residues total = all(3, 7, 0), largest = total;
  for (std::uint64_t rank = 0; rank < 5; ++rank) {
    const Residues x = random_residues(3, 7, rank + 1);
    terms.push_back(rig.put(x));
    total = sum(total, x);
    for (std::size_t i = 0; i < x.values.size(); ++i)
      largest.values[i] = std::max(largest.values[i], x.values[i]);
  }
  for (const ReduceOrder order : {ReduceOrder::ring, ReduceOrder::tree, ReduceOrder::one_shot,
                                  ReduceOrder::two_shot, ReduceOrder::nvls, ReduceOrder::fixed_tree}) {
    for (const HopRounding hop : {HopRounding::wire, HopRounding::f32}) {
      EXPECT_EQ(rig.reduce(terms, {ReduceOp::sum, order, hop}), total);
      EXPECT_EQ(rig.reduce(terms, {ReduceOp::max, order, hop}), largest);
    }
  }
  terms[2] = terms[1];  // planted: one rank's term twice, another's not at all
  EXPECT_NE(rig.reduce(terms, {}), total);
}

}  // namespace
}  // namespace shardcheck
