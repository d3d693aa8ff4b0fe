// SPDX-License-Identifier: Apache-2.0
// argmax and softmax cross-entropy over shards of a vocabulary.
#include "kernels/twin/vocabulary.hpp"

#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

using Owned = std::vector<std::pair<std::int64_t, std::int64_t>>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// What each rank owns of a vocabulary: contiguous, empty, in pieces out of order.
std::vector<Owned> shards_of(std::int64_t vocabulary) {
  const std::int64_t third = vocabulary / 3, half = vocabulary / 2;
  return {{{0, third}}, {{third, third}}, {}, {{half, vocabulary}, {third, half}}};
}

/// The columns that `owned` names, in its order.
Matrix columns(const Matrix& whole, const Owned& owned) {
  Matrix part{whole.rows, 0, {}};
  for (const auto& [begin, end] : owned) part.cols += end - begin;
  for (std::int64_t row = 0; row < whole.rows; ++row) {
    for (const auto& [begin, end] : owned) {
      for (std::int64_t col = begin; col < end; ++col) part.values.push_back(whole(row, col));
    }
  }
  return part;
}

class VocabularyTest : public testing::TestWithParam<DType> {
 protected:
  DType acc() const { return accumulate_dtype(GetParam()); }

  std::vector<twin::Argmax> argmax(const Matrix& logits, const Owned& owned,
                                   Layout layout = Layout::dense) {
    const Tensor value = rig_.make(acc(), logits.rows, 1, layout),
                 index = rig_.make(DType::i64, logits.rows, 1, layout);
    rig_.device().argmax(rig_.stream(), rig_.put(GetParam(), logits, layout), owned, value, index);
    const std::vector<double> values = rig_.get(value).to_f64();
    const HostTensor indices = rig_.get(index);
    std::vector<twin::Argmax> result;
    for (std::size_t row = 0; row < values.size(); ++row) {
      result.push_back({values[row], indices.as<std::int64_t>()[row]});
    }
    return result;
  }

  testing::AssertionResult same_argmax(const Matrix& logits, const Owned& owned,
                                       Layout layout = Layout::dense) {
    const std::vector<twin::Argmax> got = argmax(logits, owned, layout);
    for (std::size_t row = 0; row < got.size(); ++row) {
      const twin::Argmax want = twin::argmax(logits, static_cast<std::int64_t>(row), owned);
      const bool same_value = std::isnan(want.value) ? std::isnan(got[row].value)
                                                     : got[row].value == want.value;
      if (!same_value || got[row].index != want.index) {
        return testing::AssertionFailure()
               << "row " << row << ": " << got[row].value << " at " << got[row].index << ", not "
               << want.value << " at " << want.index;
      }
    }
    return testing::AssertionSuccess();
  }

  CrossEntropyState make_state(std::int64_t rows, Layout layout = Layout::dense) {
    return {.max = rig_.make(acc(), rows, 1, layout),
            .sum = rig_.make(acc(), rows, 1, layout),
            .target = rig_.make(acc(), rows, 1, layout)};
  }

  CrossEntropyState partial(const Matrix& logits, const std::vector<std::int64_t>& targets,
                            const Owned& owned, Layout layout = Layout::dense) {
    const CrossEntropyState state = make_state(logits.rows, layout);
    rig_.device().cross_entropy_partial(rig_.stream(), rig_.put(GetParam(), logits, layout),
                                        rig_.put_ids(targets, layout), owned, state);
    return state;
  }

  HostTensor finish(const CrossEntropyState& state, Layout layout = Layout::dense) {
    const Tensor loss = rig_.make(acc(), state.max.rows, 1, layout);
    rig_.device().cross_entropy_finish(rig_.stream(), state, loss);
    return rig_.get(loss);
  }

  /// Each shard's state merged into the first one's, in this order.
  HostTensor merged(const Matrix& logits, const std::vector<std::int64_t>& targets,
                    const std::vector<Owned>& shards) {
    const CrossEntropyState all = partial(columns(logits, shards[0]), targets, shards[0]);
    for (std::size_t rank = 1; rank < shards.size(); ++rank) {
      const CrossEntropyState state = partial(columns(logits, shards[rank]), targets, shards[rank]);
      rig_.device().cross_entropy_merge(rig_.stream(), state, all);
    }
    return finish(all);
  }

  twin::Answer want(const Matrix& logits, const std::vector<std::int64_t>& targets) {
    return twin::cross_entropy(logits, targets, rig_.arithmetic(Primitive::cross_entropy, GetParam()));
  }

  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1) {
    return random_matrix(GetParam(), rows, cols, seed, scale);
  }

  /// Every row's target is another one, the first and the last among them.
  static std::vector<std::int64_t> targets(std::int64_t rows, std::int64_t vocabulary) {
    std::vector<std::int64_t> ids;
    for (std::int64_t row = 0; row < rows; ++row)
      ids.push_back(rows > 1 ? row * (vocabulary - 1) / (rows - 1) : 0);
    return ids;
  }

  DeviceRig rig_;
};

TEST_P(VocabularyTest, ArgmaxIsTheTwinsInAnyLayout) {
  for (const std::int64_t vocabulary : {1, 7, 64, 97, 2600}) {
    const Matrix logits = random(5, vocabulary, 1, 4);
    for (const Owned& owned : shards_of(vocabulary)) {
      for (const Layout layout : kLayouts)
        EXPECT_TRUE(same_argmax(columns(logits, owned), owned, layout)) << vocabulary;
    }
    EXPECT_TRUE(same_argmax(logits, {{1000, 1000 + vocabulary}})) << vocabulary;
  }
}

TEST_P(VocabularyTest, ArgmaxTakesTheLowestOfEqualOnes) {
  // Few different values, so that every row's largest one stands in many places, in ranges in and out of order.
  const Matrix logits = integer_matrix(40, 90, 3, 2);
  for (const Owned& owned :
       {Owned{{0, 90}}, Owned{{60, 100}, {0, 50}}, Owned{{50, 51}, {49, 50}, {100, 188}}}) {
    EXPECT_TRUE(same_argmax(logits, owned));
  }
  const Matrix equal{1, 300, std::vector<double>(300, -1.5)};
  EXPECT_EQ(argmax(equal, {{200, 400}, {100, 200}})[0].index, 100);
}

TEST_P(VocabularyTest, ArgmaxTakesNaNForTheLargest) {
  Matrix logits = random(6, 200, 1);
  for (const std::size_t at : {0u, 199u, 200u + 70u, 200u + 150u}) logits.values[at] = kNaN;
  logits.values[2 * 200 + 30] = kInfinity, logits.values[2 * 200 + 31] = kNaN;
  for (std::size_t i = 600; i < 800; ++i) logits.values[i] = -kInfinity;
  for (std::size_t i = 800; i < 1000; ++i) logits.values[i] = kNaN;
  for (const Owned& owned : {Owned{{0, 200}}, Owned{{100, 200}, {0, 100}}})
    EXPECT_TRUE(same_argmax(logits, owned));
  const std::vector<twin::Argmax> got = argmax(logits, {{0, 200}});
  EXPECT_EQ(got[0].index, 0);
  EXPECT_EQ(got[1].index, 70);
  EXPECT_EQ(got[2].index, 31);
  EXPECT_EQ(got[3].index, 0);  // -inf everywhere is still a largest value
  EXPECT_EQ(got[3].value, -kInfinity);
}

TEST_P(VocabularyTest, ArgmaxWithoutColumnsIsNobodys) {
  for (const twin::Argmax& got : argmax(Matrix{3, 0, {}}, {{5, 5}})) {
    EXPECT_EQ(got.value, -kInfinity);
    EXPECT_EQ(got.index, -1);
  }
  EXPECT_TRUE(argmax(Matrix{0, 4, {}}, {{0, 4}}).empty());
}

TEST_P(VocabularyTest, ArgmaxOfAWrongRangeIsSeen) {
  const Matrix logits = random(5, 97, 1);
  const std::vector<twin::Argmax> got = argmax(logits, {{40, 97}, {0, 40}});  // really columns 0 to 96
  bool differs = false;
  for (std::int64_t row = 0; row < 5; ++row) {
    differs |= got[static_cast<std::size_t>(row)].index !=
               twin::argmax(logits, row, Owned{{0, 97}}).index;
  }
  EXPECT_TRUE(differs);
}

TEST_P(VocabularyTest, CrossEntropyAgreesWithTheTwin) {
  for (const std::int64_t vocabulary : {1, 7, 64, 97, 2600}) {
    const Matrix logits = random(6, vocabulary, 1, 4);
    const std::vector<std::int64_t> ids = targets(6, vocabulary);
    const HostTensor dense = finish(partial(logits, ids, {{0, vocabulary}}));
    EXPECT_TRUE(within_budget(dense, want(logits, ids))) << vocabulary;
    for (const Layout layout : kLayouts) {
      EXPECT_TRUE(finish(partial(logits, ids, {{0, vocabulary}}, layout), layout).bitwise_equal(dense))
          << vocabulary;
    }
  }
}

TEST_P(VocabularyTest, ShardsMergeToTheWhole) {
  for (const std::int64_t vocabulary : {1, 7, 97, 2600}) {
    const Matrix logits = random(300, vocabulary, 1, 4);
    const std::vector<std::int64_t> ids = targets(300, vocabulary);
    std::vector<Owned> shards = shards_of(vocabulary);
    EXPECT_TRUE(within_budget(merged(logits, ids, shards), want(logits, ids))) << vocabulary;
    std::ranges::reverse(shards);
    EXPECT_TRUE(within_budget(merged(logits, ids, shards), want(logits, ids))) << vocabulary;
    if (small_shapes() && vocabulary > 90) break;
  }
}

TEST_P(VocabularyTest, ManyRangesFindEveryTarget) {
  Owned owned;
  for (std::int64_t begin = 99; begin-- > 0;)
    owned.emplace_back(3 * begin, 3 * begin + 3);  // backwards
  const Matrix logits = random(50, 297, 1, 4);
  const std::vector<std::int64_t> ids = targets(50, 297);
  EXPECT_TRUE(within_budget(finish(partial(columns(logits, owned), ids, owned)), want(logits, ids)));
  EXPECT_TRUE(same_argmax(columns(logits, owned), owned));
}

TEST_P(VocabularyTest, LargeLogitsDontOverflow) {
  Matrix logits = random(4, 50, 1);
  for (double& x : logits.values) x = 2000 * x;
  logits.values = exactly(GetParam(), logits).to_f64();
  const std::vector<std::int64_t> ids = targets(4, 50);
  EXPECT_TRUE(within_budget(merged(logits, ids, shards_of(50)), want(logits, ids)));
}

TEST_P(VocabularyTest, AnEmptyShardIsTheNeutralState) {
  const Matrix logits = random(5, 40, 1, 4);
  const std::vector<std::int64_t> ids = targets(5, 40);
  const auto empty = [&] { return partial(Matrix{5, 0, {}}, ids, {{9, 9}}); };
  for (const double max : rig_.get(empty().max).to_f64()) EXPECT_EQ(max, -kInfinity);
  for (const double sum : rig_.get(empty().sum).to_f64()) EXPECT_EQ(sum, 0);
  for (const double target : rig_.get(empty().target).to_f64()) EXPECT_EQ(target, 0);
  const HostTensor alone = finish(partial(logits, ids, {{0, 40}}));
  const CrossEntropyState full = partial(logits, ids, {{0, 40}}), into = empty(), nothing = empty();
  rig_.device().cross_entropy_merge(rig_.stream(), empty(), full);
  EXPECT_TRUE(finish(full).bitwise_equal(alone));
  rig_.device().cross_entropy_merge(rig_.stream(), full, into);
  EXPECT_TRUE(finish(into).bitwise_equal(alone));
  rig_.device().cross_entropy_merge(rig_.stream(), empty(), nothing);
  EXPECT_EQ(rig_.get(nothing.sum).at(0), 0);
  EXPECT_EQ(rig_.get(nothing.max).at(0), -kInfinity);
}

TEST_P(VocabularyTest, ImpossibleTokensAddNothingAndNaNIsKept) {
  Matrix logits = random(3, 60, 1);
  for (std::size_t i = 0; i < 20; ++i) logits.values[i] = -kInfinity;  // a whole shard of row 0
  const std::vector<std::int64_t> ids = {40, 3, 59};
  EXPECT_TRUE(within_budget(merged(logits, ids, shards_of(60)), want(logits, ids)));
  for (const std::size_t column : {0u, 19u, 20u, 59u}) {
    Matrix bad = logits;
    bad.values[60 + column] = kNaN;
    const std::vector<double> loss = merged(bad, ids, shards_of(60)).to_f64();
    EXPECT_TRUE(std::isnan(loss[1])) << column;
    EXPECT_FALSE(std::isnan(loss[0]) || std::isnan(loss[2])) << column;
  }
}

TEST_P(VocabularyTest, PlantedFaultsExceedTheBudget) {
  const Matrix logits = random(30, 97, 1);
  const std::vector<std::int64_t> ids = targets(30, 97);
  const std::vector<Owned> shards = shards_of(97);
  const twin::Answer answer = want(logits, ids);
  ASSERT_TRUE(within_budget(merged(logits, ids, shards), answer));
  EXPECT_FALSE(within_budget(merged(logits, ids, {shards[0], shards[1]}), answer));  // a shard is missing
  EXPECT_FALSE(within_budget(merged(logits, ids, {shards[0], shards[3], shards[0]}),
                             answer));  // one is merged twice
  std::vector<std::int64_t> others = ids;
  others[7] += 1;
  EXPECT_FALSE(within_budget(merged(logits, others, shards), answer));
  // The last shard's ranges in ascending order, its columns not.
  const Owned ascending = {shards[3][1], shards[3][0]};
  const CrossEntropyState all = partial(columns(logits, shards[0]), ids, shards[0]);
  rig_.device().cross_entropy_merge(rig_.stream(),
                                    partial(columns(logits, shards[3]), ids, ascending), all);
  EXPECT_FALSE(within_budget(finish(all), answer));
}

INSTANTIATE_TEST_SUITE_P(Storage, VocabularyTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

}  // namespace
}  // namespace shardcheck
