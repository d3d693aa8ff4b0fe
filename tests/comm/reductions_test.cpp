// SPDX-License-Identifier: Apache-2.0
// Every order, dtype and group size against a scalar twin, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

#include "model/float_bits.hpp"
#include "tests/comm/ranks.hpp"

namespace shardcheck::testing {
namespace {

constexpr ReduceOrder kOrders[] = {ReduceOrder::ring,     ReduceOrder::tree,
                                   ReduceOrder::one_shot, ReduceOrder::two_shot,
                                   ReduceOrder::nvls,     ReduceOrder::fixed_tree};
constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

double rounded(DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::bf16:
      return bf16_to_f32(f32_to_bf16(narrow));
    case DType::f16:
      return f16_to_f32(f32_to_f16(narrow));
    default:
      return value;
  }
}

/// a + b in the accumulate dtype.
double plus(DType wire, double a, double b) {
  if (wire == DType::f64) return a + b;
  return static_cast<float>(a) + static_cast<float>(b);
}

double tree_sum(DType wire, const std::vector<double>& x, std::size_t lo, std::size_t hi) {
  if (hi - lo == 1) return x[lo];
  std::size_t width = 1;
  while (2 * width < hi - lo) width *= 2;
  return plus(wire, tree_sum(wire, x, lo, lo + width), tree_sum(wire, x, lo + width, hi));
}

/// The twin: one element of a reduction as reduction.hpp words it, one addition at a time.
double reduced(DType wire, const ReduceSpec& spec, const std::vector<double>& x, std::int64_t index,
               std::int64_t total) {
  const auto ranks = static_cast<std::int64_t>(x.size());
  if (spec.op == ReduceOp::max) return *std::max_element(x.begin(), x.end());
  if (spec.order == ReduceOrder::fixed_tree) return rounded(wire, tree_sum(wire, x, 0, x.size()));
  std::vector<std::size_t> order;
  for (std::int64_t i = 0; i < ranks; ++i) {
    std::int64_t rank = i;
    if (spec.order == ReduceOrder::tree) rank = ranks - 1 - i;
    if (spec.order == ReduceOrder::ring) {
      const std::int64_t grain = 16 / static_cast<std::int64_t>(element_size(wire));
      const std::int64_t chunk_size = ((total + ranks - 1) / ranks + grain - 1) / grain * grain;
      rank = (index / chunk_size + 1 + i) % ranks;
    }
    order.push_back(static_cast<std::size_t>(rank));
  }
  const bool chain = spec.order == ReduceOrder::ring || spec.order == ReduceOrder::tree;
  const bool every_hop = chain && spec.hop == HopRounding::wire;
  double sum = x[order[0]];
  for (std::size_t i = 1; i < order.size(); ++i) {
    sum = plus(wire, sum, x[order[i]]);
    if (every_hop) sum = rounded(wire, sum);
  }
  return rounded(wire, sum);
}

HostTensor reduced(const PerRank& inputs, const ReduceSpec& spec) {
  const HostTensor& first = inputs[0];
  std::vector<double> values;
  for (std::int64_t i = 0; i < first.elements(); ++i) {
    std::vector<double> x;
    for (const HostTensor& input : inputs) x.push_back(input.at(i));
    values.push_back(reduced(first.dtype(), spec, x, i, first.elements()));
  }
  return round_to(first.dtype(), first.shape(), values);
}

/// Small numbers of all ranks, and in every element a large one of one rank that another rank's cancels: what the f32
/// sum lost in between shows in the result of every dtype, and depends on the order.
PerRank cancelling_inputs(int ranks, DType dtype, std::int64_t rows, std::int64_t cols,
                          std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low);
  };
  const auto number = [&](int exponent) {
    const double mantissa = 1.0 + static_cast<double>(random() >> 12) * 0x1p-52;
    return std::ldexp(between(0, 2) == 0 ? mantissa : -mantissa, exponent);
  };
  std::vector<std::vector<double>> values(static_cast<std::size_t>(ranks));
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    for (std::vector<double>& own : values)
      own.push_back(number(-14 + static_cast<int>(between(0, 7))));
    const std::uint64_t a = between(0, values.size()), b = between(0, values.size());
    const double large = number(12);
    if (a == b) continue;
    values[a].back() = large;
    values[b].back() = -large;
  }
  PerRank inputs;
  for (const std::vector<double>& own : values)
    inputs.push_back(round_to(dtype, {rows, cols}, own));
  return inputs;
}

PerRank all_reduce(Ranks& ranks, const PerRank& inputs, const ReduceSpec& spec) {
  PerRank results(inputs.size());
  ranks.run([&](Rank& rank) {
    const HostTensor& input = inputs[static_cast<std::size_t>(rank.index)];
    const Tensor out = rank.empty(input.dtype(), input.rows(), input.cols());
    rank.over()->all_reduce(rank.stream(), rank.put(input), spec, out, at("mlp.down_proj"));
    results[static_cast<std::size_t>(rank.index)] = rank.get(out);
  });
  return results;
}

void expect_all_equal(const PerRank& results, const HostTensor& expected, const std::string& what) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].bitwise_equal(expected)) << what << " on rank " << rank;
  }
}

class Reductions : public ::testing::TestWithParam<int> {};  // group size

TEST_P(Reductions, HaveTheBitsOfTheTwin) {
  const int size = GetParam();
  Ranks ranks(size);
  std::uint64_t seed = 1;
  for (const DType dtype : kDTypes) {
    for (const auto& [rows, cols] :
         {std::pair<int, int>{0, 5}, {1, 1}, {1, 7}, {5, 48}, {3, 67}, {7, 613}}) {
      const PerRank inputs = cancelling_inputs(size, dtype, rows, cols, ++seed);
      for (const ReduceOrder order : kOrders) {
        for (const HopRounding hop : {HopRounding::wire, HopRounding::f32}) {
          const ReduceSpec spec{ReduceOp::sum, order, hop};
          expect_all_equal(
              all_reduce(ranks, inputs, spec), reduced(inputs, spec),
              fmt::format("{} {} hop {} [{}, {}]", name(dtype), name(order), name(hop), rows, cols));
        }
      }
      const ReduceSpec spec{ReduceOp::max, ReduceOrder::ring, HopRounding::wire};
      expect_all_equal(all_reduce(ranks, inputs, spec), reduced(inputs, spec),
                       fmt::format("max {}", name(dtype)));
    }
  }
}

// Large enough that every rank does its own share, in several blocks.
TEST_P(Reductions, HaveTheBitsOfTheTwinWhereEveryRankWorks) {
  const int size = GetParam();
  Ranks ranks(size);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const PerRank inputs = cancelling_inputs(size, dtype, 131, 1031, 5);
    for (const ReduceOrder order : {ReduceOrder::ring, ReduceOrder::fixed_tree}) {
      const ReduceSpec spec{ReduceOp::sum, order, HopRounding::wire};
      expect_all_equal(all_reduce(ranks, inputs, spec), reduced(inputs, spec),
                       fmt::format("{} {}", name(dtype), name(order)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(GroupSizes, Reductions, ::testing::Range(1, 10),
                         ::testing::PrintToStringParamName());

// The inputs tell the orders apart in every dtype: were one taken for another, the tests above would fail.
TEST(ReductionInputs, TellTheOrdersApart) {
  for (const DType dtype : kDTypes) {
    const PerRank inputs = cancelling_inputs(7, dtype, 3, 67, 9);
    const ReduceSpec specs[] = {{ReduceOp::sum, ReduceOrder::ring, HopRounding::wire},
                                {ReduceOp::sum, ReduceOrder::tree, HopRounding::wire},
                                {ReduceOp::sum, ReduceOrder::ring, HopRounding::f32},
                                {ReduceOp::sum, ReduceOrder::tree, HopRounding::f32},
                                {ReduceOp::sum, ReduceOrder::one_shot, HopRounding::f32},
                                {ReduceOp::sum, ReduceOrder::fixed_tree, HopRounding::f32}};
    const bool narrow = dtype == DType::bf16 || dtype == DType::f16;  // else hops round to what they are
    for (std::size_t a = narrow ? 0 : 2; a < std::size(specs); ++a) {
      for (std::size_t b = narrow ? 0 : 2; b < a; ++b) {
        EXPECT_FALSE(reduced(inputs, specs[a]).bitwise_equal(reduced(inputs, specs[b])))
            << name(dtype) << ' ' << a << " and " << b;
      }
    }
  }
}

TEST(AllReduce, NaNOfOneRankReachesAll) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    for (int bad = 0; bad < 3; ++bad) {
      PerRank inputs = cancelling_inputs(3, DType::bf16, 2, 9, 4);
      std::vector<double> values = inputs[static_cast<std::size_t>(bad)].to_f64();
      values[11] = std::numeric_limits<double>::quiet_NaN();
      inputs[static_cast<std::size_t>(bad)] = round_to(DType::bf16, {2, 9}, values);
      Ranks ranks(3);
      for (const HostTensor& result :
           all_reduce(ranks, inputs, {op, ReduceOrder::ring, HopRounding::wire})) {
        EXPECT_TRUE(std::isnan(result.at(11)));
        EXPECT_FALSE(std::isnan(result.at(10)));
      }
    }
  }
}

// Each rank on a device object of its own, as on several GPUs.
TEST(AllReduce, WorksAcrossDevices) {
  Ranks ranks(Mesh{{{"tp", 3}}}, "cpu", "threads", true);
  for (const std::int64_t rows : {2, 700}) {
    const PerRank inputs = cancelling_inputs(3, DType::f32, rows, 129, 6);
    const ReduceSpec spec;
    expect_all_equal(all_reduce(ranks, inputs, spec), reduced(inputs, spec), "own devices");
  }
}

/// A partition of `extent` by random borders and a random interleaving: uneven, with empty and with split parts.
Partition random_partition(std::int64_t extent, int ranks) {
  std::vector<Ranges> parts(static_cast<std::size_t>(ranks));
  std::int64_t begin = 0;
  while (begin < extent) {
    const std::int64_t end = *rc::gen::inRange(begin + 1, extent + 1);
    parts[static_cast<std::size_t>(*rc::gen::inRange(0, ranks))].push_back({begin, end});
    begin = end;
  }
  return {extent, parts};
}

RC_GTEST_PROP(Collectives, ReduceScatterThenAllGatherIsAllReduce, ()) {
  const int size = *rc::gen::inRange(1, 7);
  const auto rows = *rc::gen::inRange<std::int64_t>(0, 9);
  const auto cols = *rc::gen::inRange<std::int64_t>(0, 40);
  const DType dtype = *rc::gen::elementOf(std::vector<DType>(std::begin(kDTypes), std::end(kDTypes)));
  const ReduceSpec spec{
      ReduceOp::sum,
      *rc::gen::elementOf(std::vector<ReduceOrder>(std::begin(kOrders), std::end(kOrders))),
      *rc::gen::element(HopRounding::wire, HopRounding::f32)};
  const Dim dim = *rc::gen::element(Dim::tokens, Dim::features);
  const Partition part = random_partition(dim == Dim::tokens ? rows : cols, size);
  const PerRank inputs = cancelling_inputs(size, dtype, rows, cols,
                                           *rc::gen::inRange<std::uint64_t>(0, 1000));

  Ranks ranks(size);
  const HostTensor expected = reduced(inputs, spec);
  PerRank gathered(inputs.size()), scattered(inputs.size());
  ranks.run([&](Rank& rank) {
    const auto self = static_cast<std::size_t>(rank.index);
    const std::int64_t own = part.size(rank.index);
    const Tensor mine = rank.empty(dtype, dim == Dim::tokens ? own : rows,
                                   dim == Dim::tokens ? cols : own);
    const Tensor whole = rank.empty(dtype, rows, cols);
    const auto tp = rank.over();
    tp->reduce_scatter(rank.stream(), rank.put(inputs[self]), dim, part, spec, mine, at("o_proj"));
    tp->all_gather(rank.stream(), mine, dim, part, whole, at("norm"));
    scattered[self] = rank.get(mine);
    gathered[self] = rank.get(whole);
  });
  for (int rank = 0; rank < size; ++rank) {
    RC_ASSERT(scattered[static_cast<std::size_t>(rank)].bitwise_equal(
        part_of(expected, dim, part.of(rank))));
    RC_ASSERT(gathered[static_cast<std::size_t>(rank)].bitwise_equal(expected));
  }
}

}  // namespace
}  // namespace shardcheck::testing
