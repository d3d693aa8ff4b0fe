// SPDX-License-Identifier: Apache-2.0
// Shapes that a GPU meets and a CPU in a test doesn't: more rows than a grid's second dimension may have (65535), rows
// longer than any block, more elements than 32 bits can count, matrices of many tiles. On emu the same cases are small.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/twin/activation.hpp"
#include "kernels/twin/attention.hpp"
#include "kernels/twin/elementwise.hpp"
#include "kernels/twin/layer_norm.hpp"
#include "kernels/twin/linear.hpp"
#include "kernels/twin/reduce.hpp"
#include "kernels/twin/rms_norm.hpp"
#include "kernels/twin/rms_parts.hpp"
#include "kernels/twin/vocabulary.hpp"
#include "tests/gpu/gpu_kind.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

std::int64_t sized(std::int64_t on_gpu, std::int64_t elsewhere) {
  return gpu_kind() == "cuda" ? on_gpu : elsewhere;
}

class LargeShapes : public testing::TestWithParam<DType> {
 protected:
  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return random_matrix(GetParam(), rows, cols, seed);
  }
  Arithmetic arithmetic(Primitive primitive) { return rig_.arithmetic(primitive, GetParam()); }

  DeviceRig rig_;
};

TEST_P(LargeShapes, MoreRowsThanAGridIsHigh) {
  const std::int64_t rows = sized(70001, 301), cols = 5;
  const Matrix a = random(rows, cols, 1), b = random(rows, cols, 2), row = random(1, cols, 3);
  const Tensor ta = rig_.put(GetParam(), a), tb = rig_.put(GetParam(), b),
               trow = rig_.put(GetParam(), row);
  Device& device = rig_.device();
  Stream& stream = rig_.stream();
  const Tensor sum = rig_.make(GetParam(), rows, cols), biased = rig_.make(GetParam(), rows, cols);
  const Tensor gated = rig_.make(GetParam(), rows, cols),
               copied = rig_.make(GetParam(), rows, cols, Layout::transposed);
  const Tensor wide = rig_.make(DType::f64, rows, cols);
  device.add(stream, ta, tb, sum);
  device.bias(stream, ta, trow, biased);
  device.gate(stream, ta, tb, gated);
  device.copy(stream, ta, copied);
  device.cast(stream, ta, wide);
  EXPECT_TRUE(rig_.get(sum).bitwise_equal(exactly(GetParam(), twin::add(a, b, GetParam()))));
  EXPECT_TRUE(rig_.get(biased).bitwise_equal(exactly(GetParam(), twin::add(a, row, GetParam()))));
  EXPECT_TRUE(
      within_budget(rig_.get(gated), twin::gate(a, b, GetParam(), arithmetic(Primitive::gate))));
  EXPECT_TRUE(rig_.get(copied).bitwise_equal(exactly(GetParam(), a)));
  EXPECT_EQ(rig_.get(wide).to_f64(), a.values);
}

TEST_P(LargeShapes, RowsLongerThanAnyBlock) {
  const std::int64_t rows = 3, cols = sized(150001, 2503);
  const Matrix x = random(rows, cols, 1), weight = random(1, cols, 2), bias = random(1, cols, 3);
  const Tensor tx = rig_.put(GetParam(), x), tw = rig_.put(GetParam(), weight),
               tb = rig_.put(GetParam(), bias);
  const Tensor rms = rig_.make(GetParam(), rows, cols), layer = rig_.make(GetParam(), rows, cols);
  rig_.device().rms_norm(rig_.stream(), tx, tw, 1e-5, rms);
  rig_.device().layer_norm(rig_.stream(), tx, tw, tb, 1e-5, layer);
  EXPECT_TRUE(within_budget(
      rig_.get(rms), twin::rms_norm(x, weight, 1e-5, GetParam(), arithmetic(Primitive::rms_norm))));
  EXPECT_TRUE(within_budget(rig_.get(layer), twin::layer_norm(x, weight, bias, 1e-5, GetParam(),
                                                              arithmetic(Primitive::layer_norm))));
  const Tensor squares = rig_.make(accumulate_dtype(GetParam()), rows, 1);
  const Tensor parts = rig_.make(GetParam(), rows, cols);
  rig_.device().square_sum(rig_.stream(), tx, squares);
  rig_.device().rms_apply(rig_.stream(), tx, tw, squares, cols, 1e-5, parts);
  EXPECT_TRUE(within_budget(rig_.get(squares),
                            twin::square_sum(x, arithmetic(Primitive::square_sum))));
  EXPECT_TRUE(rig_.get(parts).bitwise_equal(rig_.get(rms)));
}

TEST_P(LargeShapes, ALongVocabularyOfManyTokens) {
  for (const auto& [rows, cols] : {std::pair(std::int64_t{2}, sized(262147, 3001)),
                                   std::pair(sized(70001, 301), std::int64_t{7})}) {
    const Matrix x = random(rows, cols, 4);
    const Tensor logits = rig_.put(GetParam(), x);
    const DType acc = accumulate_dtype(GetParam());
    const std::vector<std::pair<std::int64_t, std::int64_t>> owned = {{10, 10 + cols}};
    const Tensor value = rig_.make(acc, rows, 1), index = rig_.make(DType::i64, rows, 1);
    rig_.device().argmax(rig_.stream(), logits, owned, value, index);
    const HostTensor values = rig_.get(value), indices = rig_.get(index);

    std::vector<std::int64_t> targets, local;
    for (std::int64_t row = 0; row < rows; ++row) local.push_back(row * 31 % cols);
    for (const std::int64_t target : local) targets.push_back(10 + target);
    const CrossEntropyState state{rig_.make(acc, rows, 1), rig_.make(acc, rows, 1),
                                  rig_.make(acc, rows, 1)};
    const Tensor loss = rig_.make(acc, rows, 1);
    rig_.device().cross_entropy_partial(rig_.stream(), logits, rig_.put_ids(targets), owned, state);
    rig_.device().cross_entropy_finish(rig_.stream(), state, loss);
    EXPECT_TRUE(within_budget(rig_.get(loss),
                              twin::cross_entropy(x, local, arithmetic(Primitive::cross_entropy))));
    for (std::int64_t row = 0; row < rows; ++row) {
      const twin::Argmax want = twin::argmax(x, row, owned);
      ASSERT_EQ(indices.as<std::int64_t>()[static_cast<std::size_t>(row)], want.index) << row;
      ASSERT_EQ(values.at(row), want.value) << row;
    }
  }
}

TEST_P(LargeShapes, ManyTokensOfAnEmbedding) {
  const std::int64_t tokens = sized(70001, 301), vocabulary = 130;
  const Matrix table = random(50, 9, 5);
  const std::vector<std::pair<std::int64_t, std::int64_t>> owned = {{3, 33}, {100, 120}};
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(i * 37 % vocabulary);
  const Tensor out = rig_.make(GetParam(), tokens, 9);
  rig_.device().embedding(rig_.stream(), rig_.put_ids(ids), rig_.put(GetParam(), table), owned, out);
  EXPECT_TRUE(rig_.get(out).bitwise_equal(exactly(GetParam(), twin::embedding(ids, table, owned))));
}

TEST_P(LargeShapes, LinearOfManyTiles) {
  const std::int64_t m = sized(131, 18), k = sized(4100, 260), n = sized(515, 37);
  const Matrix bias = random(1, n, 3);
  const auto run = [&](const Matrix& x, const Matrix& weight) {
    const Tensor out = rig_.make(GetParam(), m, n), b = rig_.put(GetParam(), bias);
    rig_.device().linear(rig_.stream(), rig_.put(GetParam(), x), rig_.put(GetParam(), weight), &b, out);
    return rig_.get(out);
  };
  const Matrix x = random(m, k, 1), weight = random(n, k, 2);
  EXPECT_TRUE(within_budget(
      run(x, weight), twin::linear(x, weight, &bias, GetParam(), arithmetic(Primitive::linear))));
}

TEST_P(LargeShapes, SumsOfLongTensors) {
  const std::int64_t rows = sized(513, 5), cols = sized(1027, 131);
  std::vector<Matrix> terms;
  std::vector<Tensor> tensors;
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    terms.push_back(random(rows, cols, 10 + rank));
    tensors.push_back(rig_.put(GetParam(), terms.back()));
  }
  const ReduceSpec spec{ReduceOp::sum, ReduceOrder::ring, HopRounding::wire};
  const Tensor out = rig_.make(GetParam(), rows, cols);
  rig_.device().reduce_n(rig_.stream(), tensors, spec, 0, rows * cols, out);
  Matrix want{rows, cols, {}};
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows * cols); ++i) {
    std::vector<double> x;
    for (const Matrix& term : terms) x.push_back(term.values[i]);
    want.values.push_back(
        twin::reduce_n(x, spec, GetParam(), static_cast<std::int64_t>(i), rows * cols));
  }
  EXPECT_TRUE(rig_.get(out).bitwise_equal(exactly(GetParam(), want)));
}

TEST_P(LargeShapes, AttentionOfManyQueriesAndHeads) {
  const std::int64_t queries = sized(4001, 70), d = 8, window = 5;
  const std::vector<std::int32_t> heads(static_cast<std::size_t>(sized(20, 3)), 0);  // 80020 rows of states
  const AttentionShape shape{
      .head_dim = d, .scale = 0.35, .q_first = 0, .k_first = 0, .window = window};
  const auto width = static_cast<std::int64_t>(heads.size()) * d;
  const Matrix q = random(queries, width, 1), k = random(queries, d, 2), v = random(queries, d, 3);
  const DType acc = accumulate_dtype(GetParam());
  const auto count = static_cast<std::int64_t>(heads.size());
  const AttentionState state{rig_.make(acc, queries, count), rig_.make(acc, queries, count),
                             rig_.make(acc, queries, width)};
  const Tensor out = rig_.make(GetParam(), queries, width);
  rig_.device().attention_partial(rig_.stream(), rig_.put(GetParam(), q), rig_.put(GetParam(), k),
                                  rig_.put(GetParam(), v), heads, shape, state);
  rig_.device().attention_finish(rig_.stream(), state, d, out);
  // The twin looks at every key for every query: a sample of the queries, each with the keys that it sees.
  const HostTensor got = rig_.get(out);
  std::vector<double> sample;
  twin::Answer want;
  for (std::int64_t i = 0; i < queries; i += 37) {
    const std::int64_t first = std::max<std::int64_t>(0, i - window + 1), seen = i + 1 - first;
    const auto rows = [](const Matrix& m, std::int64_t begin, std::int64_t n) {
      return Matrix{
          n, m.cols, {m.values.begin() + begin * m.cols, m.values.begin() + (begin + n) * m.cols}};
    };
    AttentionShape one = shape;
    one.q_first = i;
    one.k_first = first;
    const twin::Answer answer = twin::attention(rows(q, i, 1), rows(k, first, seen),
                                                rows(v, first, seen), heads, one, GetParam(),
                                                arithmetic(Primitive::attention));
    want.value.insert(want.value.end(), answer.value.begin(), answer.value.end());
    want.budget.insert(want.budget.end(), answer.budget.begin(), answer.budget.end());
    for (std::int64_t j = 0; j < width; ++j) sample.push_back(got.at(i * width + j));
  }
  EXPECT_TRUE(within_budget(
      round_to(GetParam(), {1, static_cast<std::int64_t>(sample.size())}, sample), want));
}

INSTANTIATE_TEST_SUITE_P(DTypes, LargeShapes, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return std::string(name(test.param)); });

// Three times 4.4 GB on a GPU: element numbers that 32 bits would wrap, in a copy, a sum and a hash.
TEST(LargeTensors, ElementsBeyond32Bits) {
  DeviceRig rig;
  Device& device = rig.device();
  Stream& stream = rig.stream();
  const std::int64_t rows = sized(66000, 40), cols = sized(33000, 33);
  const Matrix last = random_matrix(DType::bf16, 2, cols, 1);
  const HostTensor bits = exactly(DType::bf16, last);
  const Tensor whole = device.allocate(stream, DType::bf16, rows, cols);
  device.poison(stream, whole);
  device.upload(stream, bits, whole.row_range(rows - 2, rows));
  const Tensor copied = device.allocate(stream, DType::bf16, rows, cols);
  device.copy(stream, whole, copied);
  EXPECT_TRUE(rig.get(copied.row_range(rows - 2, rows)).bitwise_equal(bits));
  EXPECT_TRUE(rig.get(copied.row_range(0, 1)).bitwise_equal(rig.get(whole.row_range(0, 1))));

  const std::uint64_t hash = rig.hash(copied);
  EXPECT_EQ(rig.hash(whole), hash);
  const Tensor sum = device.allocate(stream, DType::bf16, rows, cols);
  device.add(stream, whole, copied, sum);
  EXPECT_TRUE(rig.get(sum.row_range(rows - 2, rows))
                  .bitwise_equal(exactly(DType::bf16, twin::add(last, last, DType::bf16))));
  EXPECT_NE(rig.hash(sum), hash);
}

}  // namespace
}  // namespace shardcheck
