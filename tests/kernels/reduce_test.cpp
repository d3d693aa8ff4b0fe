// SPDX-License-Identifier: Apache-2.0
// Every order and precision of reduce_n against a scalar twin that follows the definition, bit for bit.
#include "kernels/twin/reduce.hpp"

#include "kernels/reduction.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

constexpr ReduceOrder kOrders[] = {ReduceOrder::ring,     ReduceOrder::tree,
                                   ReduceOrder::one_shot, ReduceOrder::two_shot,
                                   ReduceOrder::nvls,     ReduceOrder::fixed_tree};

class ReduceTest : public testing::TestWithParam<DType> {
 protected:
  std::vector<Matrix> terms(int ranks, std::int64_t elements) {
    std::vector<Matrix> result;
    for (int r = 0; r < ranks; ++r)
      result.push_back(random_matrix(GetParam(), 1, elements, 10 + r));
    return result;
  }

  std::vector<Tensor> put(const std::vector<Matrix>& x) {
    std::vector<Tensor> result;
    for (const Matrix& term : x) result.push_back(rig_.put(GetParam(), term));
    return result;
  }

  /// reduce_n over elements [first, first + n) of each term, as a [1, n] view.
  HostTensor reduce(const std::vector<Tensor>& x, const ReduceSpec& spec, std::int64_t first,
                    std::int64_t n) {
    std::vector<Tensor> views;
    for (const Tensor& term : x) views.push_back(term.col_range(first, first + n));
    const Tensor out = rig_.make(GetParam(), 1, n);
    rig_.device().reduce_n(rig_.stream(), views, spec, first, x[0].cols, out);
    return rig_.get(out);
  }

  HostTensor want(const std::vector<Matrix>& x, const ReduceSpec& spec, std::int64_t first,
                  std::int64_t n) {
    Matrix sum{1, n, {}};
    for (std::int64_t i = first; i < first + n; ++i) {
      std::vector<double> column;
      for (const Matrix& term : x) column.push_back(term(0, i));
      sum.values.push_back(twin::reduce_n(column, spec, GetParam(), i, x[0].cols));
    }
    return exactly(GetParam(), sum);
  }

  DeviceRig rig_;
};

TEST_P(ReduceTest, EveryOrderAndPrecisionBitForBit) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const std::int64_t total : {3, 131}) {
      const std::vector<Matrix> x = terms(ranks, total);
      const std::vector<Tensor> on_device = put(x);
      for (const ReduceOrder order : kOrders) {
        for (const HopRounding hop : {HopRounding::wire, HopRounding::f32}) {
          const ReduceSpec spec{.order = order, .hop = hop};
          EXPECT_TRUE(reduce(on_device, spec, 0, total).bitwise_equal(want(x, spec, 0, total)))
              << name(order) << " " << name(hop) << " P " << ranks;
        }
      }
      const ReduceSpec max{.op = ReduceOp::max};
      EXPECT_TRUE(reduce(on_device, max, 0, total).bitwise_equal(want(x, max, 0, total)));
    }
  }
}

TEST_P(ReduceTest, SumsOfIntegersAreTheSameInEveryOrder) {
  std::vector<Matrix> x;
  Matrix sum{1, 77, std::vector<double>(77, 0.0)};
  for (int rank = 0; rank < 9; ++rank) {
    x.push_back(integer_matrix(1, 77, 50 + static_cast<std::uint64_t>(rank), 14));  // |sum| <= 126: exact in bf16
    for (std::size_t i = 0; i < 77; ++i) sum.values[i] += x.back().values[i];
  }
  const std::vector<Tensor> on_device = put(x);
  for (const ReduceOrder order : kOrders) {
    const HostTensor got = reduce(on_device, {.order = order}, 0, 77);
    EXPECT_TRUE(got.bitwise_equal(exactly(GetParam(), sum))) << name(order);
    EXPECT_FALSE(with_flipped_bit(got, 76, 0).bitwise_equal(exactly(GetParam(), sum)));
  }
}

TEST_P(ReduceTest, ASliceIsReducedAsInTheWhole) {
  const std::vector<Matrix> x = terms(5, 2500);  // more than one block
  const std::vector<Tensor> on_device = put(x);
  for (const ReduceOrder order : kOrders) {
    for (const auto& [first, n] : {std::pair{0, 2500}, {0, 7}, {499, 1100}, {1501, 999}, {77, 0}}) {
      EXPECT_TRUE(reduce(on_device, {.order = order}, first, n)
                      .bitwise_equal(want(x, {.order = order}, first, n)));
    }
  }
}

TEST_P(ReduceTest, ADenseSliceFromAnyPlaceIsReducedAsInTheWhole) {
  // Copies of a slice begin where memory is aligned, yet a ring's chunks are counted from the whole tensor's element 0:
  // they end anywhere in the copies, between any two neighbours.
  constexpr std::int64_t kTotal = 400;
  for (const int ranks : {3, 7, 10}) {
    const std::vector<Matrix> x = terms(ranks, kTotal);
    const std::vector<Tensor> on_device = put(x);
    for (const ReduceOrder order : kOrders) {
      for (const HopRounding hop : {HopRounding::wire, HopRounding::f32}) {
        const ReduceSpec spec{.order = order, .hop = hop};
        const Tensor whole = rig_.make(GetParam(), 1, kTotal);
        rig_.device().reduce_n(rig_.stream(), on_device, spec, 0, kTotal, whole);
        for (const auto& [first, n] : {std::pair{1, 399}, {3, 257}, {77, 300}, {255, 112}}) {
          std::vector<Tensor> slices;
          for (const Matrix& term : x) {
            const auto begin = term.values.begin() + first;
            slices.push_back(rig_.put(GetParam(), Matrix{1, n, {begin, begin + n}}));
          }
          const Tensor out = rig_.make(GetParam(), 1, n);
          rig_.device().reduce_n(rig_.stream(), slices, spec, first, kTotal, out);
          EXPECT_TRUE(rig_.get(out).bitwise_equal(rig_.get(whole.col_range(first, first + n))))
              << name(order) << " " << name(hop) << " P " << ranks << " [" << first << ", "
              << first + n << ")";
        }
      }
    }
  }
}

TEST_P(ReduceTest, TheOrdersDifferSoThatTheTestMeansSomething) {
  const std::vector<Tensor> x = put(terms(6, 4000));
  const HostTensor ring = reduce(x, {.order = ReduceOrder::ring}, 0, 4000);
  for (const ReduceOrder order : {ReduceOrder::tree, ReduceOrder::one_shot, ReduceOrder::fixed_tree}) {
    EXPECT_FALSE(reduce(x, {.order = order}, 0, 4000).bitwise_equal(ring)) << name(order);
  }
  const HostTensor unrounded = reduce(x, {.order = ReduceOrder::ring, .hop = HopRounding::f32}, 0,
                                      4000);
  EXPECT_EQ(unrounded.bitwise_equal(ring), element_size(GetParam()) > 2);
  const std::vector<Tensor> fewer(x.begin(), x.end() - 1);
  EXPECT_FALSE(reduce(fewer, {}, 0, 4000).bitwise_equal(ring));  // one rank's term is missing
}

TEST_P(ReduceTest, NaNFromAnyRankIsKept) {
  for (std::size_t rank = 0; rank < 4; ++rank) {
    std::vector<Matrix> x = terms(4, 20);
    x[rank].values[11] = std::numeric_limits<double>::quiet_NaN();
    const std::vector<Tensor> on_device = put(x);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      for (const ReduceOrder order : kOrders) {
        const std::vector<double> got = reduce(on_device, {.op = op, .order = order}, 0, 20).to_f64();
        for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(got[i]), i == 11);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Wire, ReduceTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

TEST(ReduceRounding, HopsRoundInTheWireDTypeOnlyWhereTheySay) {
  // 256 + 1 + 1 in bf16: rounded at each hop both ones are lost (257 is a tie, to even), in f32 they are not.
  DeviceRig rig;
  std::vector<Tensor> terms;
  for (const double v : {1.0, 1.0, 256.0}) terms.push_back(rig.put(DType::bf16, Matrix{1, 1, {v}}));
  const auto sum = [&](ReduceOrder order, HopRounding hop) {
    const Tensor out = rig.make(DType::bf16, 1, 1);
    rig.device().reduce_n(rig.stream(), terms, {.order = order, .hop = hop}, 0, 1, out);
    return rig.get(out).at(0);
  };
  EXPECT_EQ(sum(ReduceOrder::tree, HopRounding::wire), 256);  // 256 first
  EXPECT_EQ(sum(ReduceOrder::tree, HopRounding::f32), 258);
  EXPECT_EQ(sum(ReduceOrder::ring, HopRounding::wire), 256);  // chunk 0: x_1 + x_2 + x_0 = (1 + 256) + 1
  EXPECT_EQ(sum(ReduceOrder::one_shot, HopRounding::wire), 258);
}

TEST(RingChunk, PiecesCoverTheTensorInOrder) {
  for (const DType wire : kStorageDTypes) {
    for (const std::int64_t total : {0, 1, 7, 64, 1000}) {
      for (int ranks = 1; ranks <= 16; ++ranks) {
        std::int64_t end = 0;
        for (int chunk = 0; chunk < ranks; ++chunk) {
          const auto range = ring_chunk(total, ranks, wire, chunk);
          EXPECT_EQ(range.first, end);
          EXPECT_LE(range.first, range.second);
          end = range.second;
        }
        EXPECT_EQ(end, total);
      }
    }
  }
  EXPECT_EQ(ring_chunk(10, 4, DType::f32, 0), (std::pair<std::int64_t, std::int64_t>{0, 4}));
  EXPECT_EQ(ring_chunk(10, 4, DType::f32, 2), (std::pair<std::int64_t, std::int64_t>{8, 10}));
  EXPECT_EQ(ring_chunk(10, 4, DType::f32, 3), (std::pair<std::int64_t, std::int64_t>{10, 10}));
  EXPECT_EQ(ring_chunk(10, 4, DType::bf16, 0), (std::pair<std::int64_t, std::int64_t>{0, 8}));
}

TEST(ReduceNames, AreReadBackAsWritten) {
  for (const ReduceOrder order : kOrders) EXPECT_EQ(parse_reduce_order(name(order)), order);
  for (const HopRounding hop : {HopRounding::wire, HopRounding::f32})
    EXPECT_EQ(parse_hop_rounding(name(hop)), hop);
  EXPECT_EQ(parse_reduce_order("rings"), std::nullopt);
  EXPECT_EQ(parse_hop_rounding(""), std::nullopt);
}

}  // namespace
}  // namespace shardcheck
