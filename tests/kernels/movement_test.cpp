// SPDX-License-Identifier: Apache-2.0
// Memory, copy, embedding, poison and hash.
#include <set>

#include "kernels/twin/elementwise.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

using Owned = std::vector<std::pair<std::int64_t, std::int64_t>>;

class MovementTest : public testing::TestWithParam<DType> {
 protected:
  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return random_matrix(GetParam(), rows, cols, seed);
  }

  HostTensor embed(const std::vector<std::int64_t>& ids, const Tensor& table, const Owned& owned,
                   DType out_dtype, Layout layout = Layout::inset) {
    const Tensor out = rig_.make(out_dtype, std::ssize(ids), table.cols, layout);
    rig_.device().embedding(rig_.stream(), rig_.put_ids(ids, layout), table, owned, out);
    return rig_.get(out);
  }

  DeviceRig rig_;
};

TEST_P(MovementTest, WhatGoesInComesOut) {
  for (const auto& [rows, cols] : {std::pair{7, 13}, {3, 64}, {1, 1}, {33, 2}}) {
    const Matrix x = random(rows, cols, 1);
    const HostTensor host = exactly(GetParam(), x);
    EXPECT_TRUE(rig_.get(rig_.device().adopt(rig_.stream(), host)).bitwise_equal(host));
    for (const Layout from : kLayouts) {
      for (const Layout to : kLayouts) {
        const Tensor out = rig_.make(GetParam(), rows, cols, to);
        rig_.device().copy(rig_.stream(), rig_.put(GetParam(), x, from), out);
        EXPECT_TRUE(rig_.get(out).bitwise_equal(host));
      }
    }
  }
  const Matrix x = random(7, 13, 1);
  const Tensor part = rig_.put(GetParam(), x).row_range(2, 5).col_range(3, 9);
  EXPECT_EQ(rig_.get(part).at(1 * 6 + 2), x(3, 5));
}

TEST_P(MovementTest, CopiesKeepEveryBitEvenOfNaN) {
  HostTensor host(GetParam(), {4, 24});
  Words words(3);
  for (std::byte& byte : std::span(host.mutable_data(), host.bytes()))
    byte = static_cast<std::byte>(words.next());
  const Tensor in = rig_.device().adopt(rig_.stream(), host);
  for (const Layout to : kLayouts) {
    const Tensor out = rig_.make(GetParam(), 4, 24, to), again = rig_.make(GetParam(), 4, 24);
    rig_.device().copy(rig_.stream(), in, out);
    EXPECT_TRUE(rig_.get(out).bitwise_equal(host));
    rig_.device().cast(rig_.stream(), out, again);  // to the same dtype
    EXPECT_TRUE(rig_.get(again).bitwise_equal(host));
  }
}

TEST_P(MovementTest, PoisonIsNaNEverywhereAndNowhereElse) {
  for (const Layout layout : kLayouts) {
    const Tensor whole = rig_.put(GetParam(), random(6, 50, 1), layout);
    rig_.device().poison(rig_.stream(), whole.row_range(1, 4).col_range(16, 48));
    const std::vector<double> values = rig_.get(whole).to_f64();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t row = i / 50, col = i % 50;
      EXPECT_EQ(std::isnan(values[i]), row >= 1 && row < 4 && col >= 16 && col < 48);
    }
  }
}

TEST_P(MovementTest, EmbeddingTakesOwnedRowsAndZerosElse) {
  // Ids 10..13 and 3..4: local rows 0..3 and 4..5.
  const Owned owned = {{10, 14}, {3, 5}};
  const std::vector<std::int64_t> ids = {3, 10, 14, 4, 13, 5, 2, 9, 0};
  for (const std::int64_t cols : {11, 48}) {
    const Matrix table = random(6, cols, 1), want = twin::embedding(ids, table, owned);
    EXPECT_EQ(want(0, 0), table(4, 0));
    EXPECT_EQ(want(2, 0), 0);
    for (const DType out_dtype : kStorageDTypes) {
      for (const Layout layout : kLayouts) {
        const HostTensor got = embed(ids, rig_.put(GetParam(), table, layout), owned, out_dtype,
                                     layout);
        EXPECT_TRUE(got.bitwise_equal(exactly(out_dtype, want)));
        EXPECT_FALSE(with_flipped_bit(got, 12, 1).bitwise_equal(exactly(out_dtype, want)));
      }
    }
  }
}

TEST_P(MovementTest, EmbeddingWithManyRanges) {
  // Two ids of every seven, from the last range to the first; some ranges are empty, and some continue each other.
  for (const std::int64_t ranges : {31, 33, 100}) {
    Owned owned;
    for (std::int64_t r = ranges; r-- > 0;) {
      owned.emplace_back(7 * r, 7 * r + 1);
      owned.emplace_back(7 * r + 1, 7 * r + 2);
      owned.emplace_back(7 * r + 4, 7 * r + 4);
    }
    std::vector<std::int64_t> ids;
    for (std::int64_t id = 0; id < 7 * ranges + 3; id += 3) ids.push_back(id);
    const Matrix table = random(2 * ranges, 5, 1);
    EXPECT_TRUE(embed(ids, rig_.put(GetParam(), table), owned, GetParam())
                    .bitwise_equal(exactly(GetParam(), twin::embedding(ids, table, owned))));
    Owned wrong = owned;  // the fault to see: two ranges exchanged
    std::swap(wrong.front(), wrong.back());
    std::swap(wrong[0], wrong[3]);
    EXPECT_FALSE(embed(ids, rig_.put(GetParam(), table), wrong, GetParam())
                     .bitwise_equal(exactly(GetParam(), twin::embedding(ids, table, owned))));
  }
}

TEST_P(MovementTest, ARankWithoutVocabularyOrTokensGivesZerosOrNothing) {
  const Tensor none = rig_.make(GetParam(), 0, 4);
  EXPECT_EQ(embed({1, 2}, none, {{5, 5}}, GetParam()).to_f64(), std::vector<double>(8, 0.0));
  EXPECT_EQ(embed({1, 2}, none, {}, GetParam()).to_f64(), std::vector<double>(8, 0.0));
  EXPECT_EQ(embed({}, rig_.put(GetParam(), random(2, 4, 1)), {{0, 2}}, GetParam()).elements(), 0);
}

TEST_P(MovementTest, HashIsThatOfTheValuesInAnyLayout) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 5}, {2, 77}, {40, 64}, {1, 4099}, {0, 5}}) {
    const Matrix x = random(rows, cols, 1);
    const std::uint64_t dense = rig_.hash(rig_.put(GetParam(), x));
    for (const Layout layout : kLayouts)
      EXPECT_EQ(rig_.hash(rig_.put(GetParam(), x, layout)), dense);
  }
}

TEST_P(MovementTest, HashChangesWithEveryBit) {
  const HostTensor x = exactly(GetParam(), random(3, small_shapes() ? 9 : 23, 1));
  const int bits = static_cast<int>(8 * element_size(GetParam()));
  const Tensor slots = rig_.make(DType::u64, 1, 1 + x.elements() * bits);
  rig_.device().hash(rig_.stream(), rig_.device().adopt(rig_.stream(), x), slots, 0);
  for (std::int64_t element = 0; element < x.elements(); ++element) {
    for (int bit = 0; bit < bits; ++bit) {
      const Tensor changed = rig_.device().adopt(rig_.stream(), with_flipped_bit(x, element, bit));
      rig_.device().hash(rig_.stream(), changed, slots, 1 + element * bits + bit);
    }
  }
  const HostTensor hashes = rig_.get(slots);
  const auto words = hashes.as<std::uint64_t>();
  const std::set<std::uint64_t> different(words.begin(), words.end());
  EXPECT_EQ(different.size(), words.size());
}

TEST_P(MovementTest, HashWritesItsOwnSlotAlone) {
  for (const std::int64_t rows : {1, 50}) {  // one block, and several
    const Tensor slots = rig_.make(DType::u64, 1, 5);
    rig_.device().hash(rig_.stream(), rig_.put(GetParam(), random(rows, 13, 1)), slots, 2);
    const HostTensor words = rig_.get(slots);
    for (std::size_t i = 0; i < 5; ++i) {
      const bool poisoned = words.as<std::uint64_t>()[i] == std::numeric_limits<std::uint64_t>::max();
      EXPECT_EQ(poisoned, i != 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, MovementTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

TEST(Hash, TellsShapesDTypesAndOrderApart) {
  DeviceRig rig;
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

TEST(Memory, IntegersAreCopiedAndPoisoned) {
  DeviceRig rig;
  const std::vector<std::int64_t> ids = {5, -1, std::int64_t{1} << 62, 0, 7};
  for (const Layout layout : kLayouts) {
    const Tensor out = rig.make(DType::i64, 1, 5, layout);
    EXPECT_EQ(rig.get(out).as<std::int64_t>()[3], std::numeric_limits<std::int64_t>::max());
    rig.device().copy(rig.stream(), rig.put_ids(ids, layout), out);
    const HostTensor host = rig.get(out);
    EXPECT_EQ(
        std::vector<std::int64_t>(host.as<std::int64_t>().begin(), host.as<std::int64_t>().end()), ids);
  }
}

TEST(Memory, SlotsAndShapesAreChecked) {
  DeviceRig rig;
  const Tensor x = rig.put(DType::f32, integer_matrix(3, 5, 1, 9));
  const Tensor slots = rig.device().allocate(rig.stream(), DType::u64, 1, 2);
  EXPECT_THROW(rig.device().hash(rig.stream(), x, slots, 2), ShapeError);
  EXPECT_THROW(rig.device().hash(rig.stream(), x, x, 0), ShapeError);
  EXPECT_THROW(rig.device().allocate(rig.stream(), DType::f32, -1, 2), ShapeError);
  EXPECT_THROW(rig.device().adopt(rig.stream(), HostTensor(DType::f32, {2, 3, 4})), ShapeError);
  EXPECT_THROW(rig.device().upload(rig.stream(), HostTensor(DType::f32, {5, 3}), x), ShapeError);
}

TEST(Streams, AnEventOrdersOneStreamBehindAnother) {
  DeviceRig rig;
  const auto second = rig.device().make_stream();
  const Matrix a = integer_matrix(3, 40, 1, 9), b = integer_matrix(3, 40, 2, 9);
  const Tensor x = rig.put(DType::f32, a), y = rig.put(DType::f32, b),
               sum = rig.make(DType::f32, 3, 40);
  const auto ready = rig.device().record(rig.stream());
  rig.device().wait(*second, *ready);
  rig.device().add(*second, x, y, sum);
  const auto read = rig.device().start_read(
      *second, sum);  // what the sum is now, whatever happens to it later
  const auto added = rig.device().record(*second);
  rig.device().wait(rig.stream(), *added);
  rig.device().add(rig.stream(), x, x, sum);
  EXPECT_TRUE(read->take().bitwise_equal(exactly(DType::f32, twin::add(a, b, DType::f32))));
  EXPECT_TRUE(rig.get(sum).bitwise_equal(exactly(DType::f32, twin::add(a, a, DType::f32))));
}

}  // namespace
}  // namespace shardcheck
