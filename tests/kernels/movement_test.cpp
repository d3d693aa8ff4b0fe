// SPDX-License-Identifier: Apache-2.0
// Memory, copy, embedding, poison and hash.
#include <set>

#include "tests/kernels/cpu_rig.hpp"

namespace shardcheck {
namespace {

using Owned = std::vector<std::pair<std::int64_t, std::int64_t>>;

class MovementTest : public testing::TestWithParam<DType> {
 protected:
  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return random_matrix(GetParam(), rows, cols, seed);
  }

  HostTensor embed(const std::vector<std::int64_t>& ids, const Tensor& table, const Owned& owned, DType out_dtype) {
    const Tensor out = rig_.make(out_dtype, std::ssize(ids), table.cols, Layout::inset);
    rig_.device().embedding(rig_.stream(), rig_.put_ids(ids), table, owned, out);
    return rig_.get(out);
  }

  CpuRig rig_;
};

TEST_P(MovementTest, WhatGoesInComesOut) {
  const Matrix x = random(7, 13, 1);
  const HostTensor host = exactly(GetParam(), x);
  EXPECT_TRUE(rig_.get(rig_.device().adopt(rig_.stream(), host)).bitwise_equal(host));
  for (const Layout from : kLayouts) {
    for (const Layout to : kLayouts) {
      const Tensor out = rig_.make(GetParam(), 7, 13, to);
      rig_.device().copy(rig_.stream(), rig_.put(GetParam(), x, from), out);
      EXPECT_TRUE(rig_.get(out).bitwise_equal(host));
    }
  }
  const Tensor part = rig_.put(GetParam(), x).row_range(2, 5).col_range(3, 9);
  EXPECT_EQ(rig_.get(part).at(1 * 6 + 2), x(3, 5));
}

TEST_P(MovementTest, AdoptedMemoryIsReadInPlaceAndKeptAlive) {
  Tensor tensor;
  {
    HostTensor host = exactly(GetParam(), random(3, 5, 1));
    tensor = rig_.device().adopt(rig_.stream(), host);
  }
  EXPECT_TRUE(rig_.get(tensor).bitwise_equal(exactly(GetParam(), random(3, 5, 1))));
  EXPECT_THROW(rig_.device().poison(rig_.stream(), tensor), ShapeError);
}

TEST_P(MovementTest, PoisonIsNaNEverywhereAndNowhereElse) {
  for (const Layout layout : kLayouts) {
    const Tensor whole = rig_.put(GetParam(), random(6, 9, 1), layout);
    rig_.device().poison(rig_.stream(), whole.row_range(1, 4).col_range(2, 8));
    const std::vector<double> values = rig_.get(whole).to_f64();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t row = i / 9, col = i % 9;
      EXPECT_EQ(std::isnan(values[i]), row >= 1 && row < 4 && col >= 2 && col < 8);
    }
  }
}

TEST_P(MovementTest, EmbeddingTakesOwnedRowsAndZerosElse) {
  // Ids 10..14 and 3..5: local rows 0..3 and 4..5.
  const Owned owned = {{10, 14}, {3, 5}};
  const std::vector<std::int64_t> ids = {3, 10, 14, 4, 13, 5, 2, 9, 0};
  const std::vector<std::int64_t> local = {4, 0, -1, 5, 3, -1, -1, -1, -1};
  const Matrix table = random(6, 11, 1);
  for (const DType out_dtype : kStorageDTypes) {
    Matrix want{std::ssize(ids), 11, {}};
    for (const std::int64_t row : local) {
      for (std::int64_t c = 0; c < 11; ++c) want.values.push_back(row < 0 ? 0 : table(row, c));
    }
    for (const Layout layout : kLayouts) {
      const HostTensor got = embed(ids, rig_.put(GetParam(), table, layout), owned, out_dtype);
      EXPECT_TRUE(got.bitwise_equal(exactly(out_dtype, want)));
      EXPECT_FALSE(with_flipped_bit(got, 12, 1).bitwise_equal(exactly(out_dtype, want)));
    }
  }
}

TEST_P(MovementTest, ARankWithoutVocabularyOrTokensGivesZerosOrNothing) {
  const Tensor none = rig_.make(GetParam(), 0, 4);
  EXPECT_EQ(embed({1, 2}, none, {{5, 5}}, GetParam()).to_f64(), std::vector<double>(8, 0.0));
  EXPECT_EQ(embed({1, 2}, none, {}, GetParam()).to_f64(), std::vector<double>(8, 0.0));
  EXPECT_EQ(embed({}, rig_.put(GetParam(), random(2, 4, 1)), {{0, 2}}, GetParam()).elements(), 0);
}

TEST_P(MovementTest, HashIsThatOfTheValuesInAnyLayout) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 5}, {2, 77}, {1, 4099}, {0, 5}}) {
    const Matrix x = random(rows, cols, 1);
    const std::uint64_t dense = rig_.hash(rig_.put(GetParam(), x));
    for (const Layout layout : kLayouts) EXPECT_EQ(rig_.hash(rig_.put(GetParam(), x, layout)), dense);
  }
}

TEST_P(MovementTest, HashChangesWithEveryBit) {
  const HostTensor x = exactly(GetParam(), random(3, 23, 1));
  std::set<std::uint64_t> hashes = {rig_.hash(rig_.device().adopt(rig_.stream(), x))};
  const int bits = static_cast<int>(8 * element_size(GetParam()));
  for (std::int64_t element = 0; element < x.elements(); ++element) {
    for (int bit = 0; bit < bits; ++bit) {
      hashes.insert(rig_.hash(rig_.device().adopt(rig_.stream(), with_flipped_bit(x, element, bit))));
    }
  }
  EXPECT_EQ(hashes.size(), static_cast<std::size_t>(1 + x.elements() * bits));
}

INSTANTIATE_TEST_SUITE_P(Storage, MovementTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

TEST(Hash, TellsShapesDTypesAndOrderApart) {
  CpuRig rig;
  const Matrix x = integer_matrix(1, 12, 1, 40);
  Matrix swapped = x;
  std::swap(swapped.values[2], swapped.values[7]);
  ASSERT_NE(x.values, swapped.values);
  std::set<std::uint64_t> hashes;
  for (const DType dtype : kStorageDTypes) {
    for (const auto& [rows, cols] : {std::pair{1, 12}, {12, 1}, {3, 4}, {4, 3}}) {
      hashes.insert(rig.hash(rig.put(dtype, Matrix{rows, cols, x.values})));
      hashes.insert(rig.hash(rig.put(dtype, Matrix{rows, cols, swapped.values})));
    }
    hashes.insert(rig.hash(rig.make(dtype, 0, 12)));
    hashes.insert(rig.hash(rig.make(dtype, 12, 0)));
  }
  EXPECT_EQ(hashes.size(), 4u * (2 * 4 + 2));
}

TEST(Memory, IsAlignedAndSlotsAreChecked) {
  CpuRig rig;
  const Tensor x = rig.put(DType::f32, integer_matrix(3, 5, 1, 9));
  const Tensor slots = rig.device().allocate(DType::u64, 1, 2);
  EXPECT_THROW(rig.device().hash(rig.stream(), x, slots, 2), ShapeError);
  EXPECT_THROW(rig.device().hash(rig.stream(), x, x, 0), ShapeError);
  EXPECT_THROW(rig.device().allocate(DType::f32, -1, 2), ShapeError);
  EXPECT_THROW(rig.device().adopt(rig.stream(), HostTensor(DType::f32, {2, 3, 4})), ShapeError);
  EXPECT_THROW(rig.device().upload(rig.stream(), HostTensor(DType::f32, {5, 3}), x), ShapeError);
  const Tensor ids = rig.device().allocate(DType::i64, 2, 3);
  rig.device().poison(rig.stream(), ids);
  EXPECT_EQ(rig.get(ids).as<std::int64_t>()[5], std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace shardcheck
