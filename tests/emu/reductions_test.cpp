// SPDX-License-Identifier: Apache-2.0
// Reductions on emu and on the cpu device: sums over any number of ranks to the same bits, vocabularies owned in more
// pieces than one launch takes.
#include "kernels/cpu/cpu_device.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

constexpr ReduceOrder kOrders[] = {ReduceOrder::ring,     ReduceOrder::tree,
                                   ReduceOrder::one_shot, ReduceOrder::two_shot,
                                   ReduceOrder::nvls,     ReduceOrder::fixed_tree};

class ReductionsTest : public testing::TestWithParam<DType> {
 protected:
  /// reduce_n of elements [first, first + n) of the terms.
  HostTensor reduce(Device& device, const std::vector<HostTensor>& terms, const ReduceSpec& spec,
                    std::int64_t first, std::int64_t n) {
    const auto stream = device.make_stream();
    std::vector<Tensor> views;
    for (const HostTensor& term : terms) {
      views.push_back(device.allocate(*stream, term.dtype(), 1, term.cols()));
      device.upload(*stream, term, views.back());
      views.back() = views.back().col_range(first, first + n);
    }
    const Tensor out = device.allocate(*stream, GetParam(), 1, n);
    device.reduce_n(*stream, views, spec, first, terms[0].cols(), out);
    return device.to_host(*stream, out);
  }

  std::vector<HostTensor> terms(int ranks, std::int64_t elements) {
    std::vector<HostTensor> result;
    for (int rank = 0; rank < ranks; ++rank) {
      const Matrix x = random_matrix(GetParam(), 1, elements, static_cast<std::uint64_t>(100 + rank));
      result.push_back(exactly(GetParam(), x));
    }
    return result;
  }

  std::unique_ptr<Device> emu_ = make_test_device(), cpu_ = make_cpu_device();
};

TEST_P(ReductionsTest, AnyNumberOfRanksGivesTheCpusBits) {
  for (const int ranks : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 72, 127, 128}) {
    const std::vector<HostTensor> x = terms(ranks, 333);
    for (const auto& [first, n] : {std::pair{0, 333}, {0, 320}, {64, 200}, {5, 77}}) {
      for (const ReduceOrder order : kOrders) {
        for (const HopRounding hop : {HopRounding::wire, HopRounding::f32}) {
          const ReduceSpec spec{.order = order, .hop = hop};
          EXPECT_TRUE(reduce(*emu_, x, spec, first, n).bitwise_equal(reduce(*cpu_, x, spec, first, n)))
              << name(order) << " " << name(hop) << " P " << ranks << " from " << first;
        }
      }
      const ReduceSpec most{.op = ReduceOp::max};
      EXPECT_TRUE(reduce(*emu_, x, most, first, n).bitwise_equal(reduce(*cpu_, x, most, first, n)));
    }
  }
}

TEST_P(ReductionsTest, MoreTermsThanALaunchTakesAreRefused) {
  EXPECT_THROW(reduce(*emu_, terms(129, 4), {}, 0, 4), InputError);
}

/// `pieces` pieces of a vocabulary, every second column pair, in falling order where `falling`.
std::vector<std::pair<std::int64_t, std::int64_t>> pieces_of(std::int64_t pieces, bool falling) {
  std::vector<std::pair<std::int64_t, std::int64_t>> owned;
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const std::int64_t at = falling ? pieces - 1 - piece : piece;
    owned.emplace_back(4 * at, 4 * at + 2 - at % 2);  // one or two columns
  }
  return owned;
}

TEST_P(ReductionsTest, ArgmaxOfManyPieces) {
  for (const std::int64_t pieces : {31, 32, 33, 70}) {
    for (const bool falling : {false, true}) {
      const auto owned = pieces_of(pieces, falling);
      std::int64_t cols = 0;
      for (const auto& [begin, end] : owned) cols += end - begin;
      Matrix x = integer_matrix(6, cols, 3, 2);  // many equal values
      for (std::int64_t col = 1; col < cols; col += 40) {
        x.values[static_cast<std::size_t>(5 * cols + col)] = std::numeric_limits<double>::quiet_NaN();
      }
      std::vector<HostTensor> values, indices;
      for (Device* device : {emu_.get(), cpu_.get()}) {
        const auto stream = device->make_stream();
        const Tensor in = device->allocate(*stream, GetParam(), 6, cols);
        device->upload(*stream, exactly(GetParam(), x), in);
        const Tensor value = device->allocate(*stream, accumulate_dtype(GetParam()), 6, 1);
        const Tensor index = device->allocate(*stream, DType::i64, 6, 1);
        device->argmax(*stream, in, owned, value, index);
        values.push_back(device->to_host(*stream, value));
        indices.push_back(device->to_host(*stream, index));
      }
      EXPECT_TRUE(indices[0].bitwise_equal(indices[1])) << pieces;
      for (std::int64_t row = 0; row < 5; ++row)
        EXPECT_EQ(values[0].at(row), values[1].at(row)) << pieces;
      EXPECT_TRUE(std::isnan(values[0].at(5)));
    }
  }
}

TEST_P(ReductionsTest, TargetsInManyPieces) {
  const auto owned = pieces_of(70, true);
  std::int64_t cols = 0;
  for (const auto& [begin, end] : owned) cols += end - begin;
  HostTensor targets(DType::i64, {1, 284});  // every id of the vocabulary and some beyond
  for (std::int64_t id = 0; id < 284; ++id)
    targets.as_mutable<std::int64_t>()[static_cast<std::size_t>(id)] = id;
  const HostTensor logits = exactly(GetParam(), random_matrix(GetParam(), 284, cols, 4));
  std::vector<HostTensor> found;
  for (Device* device : {emu_.get(), cpu_.get()}) {
    const auto stream = device->make_stream();
    const Tensor in = device->allocate(*stream, GetParam(), 284, cols),
                 ids = device->allocate(*stream, DType::i64, 1, 284);
    device->upload(*stream, logits, in);
    device->upload(*stream, targets, ids);
    const auto column = [&] {
      return device->allocate(*stream, accumulate_dtype(GetParam()), 284, 1);
    };
    const CrossEntropyState state{column(), column(), column()};
    device->cross_entropy_partial(*stream, in, ids, owned, state);
    found.push_back(device->to_host(*stream, state.target));
  }
  EXPECT_TRUE(found[0].bitwise_equal(found[1]));
}

INSTANTIATE_TEST_SUITE_P(Storage, ReductionsTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

}  // namespace
}  // namespace shardcheck
