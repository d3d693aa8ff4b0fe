// SPDX-License-Identifier: Apache-2.0
// Ranks that share one GPU: their collectives give the bits of the CPU's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sharded/comm/turn.hpp"
#include "tests/comm/ranks.hpp"
#include "tests/gpu/gpu_kind.hpp"

namespace shardcheck::testing {
namespace {

/// Calls body(rank, device, stream, communicator) for `ranks` threads on one device of that kind.
template <typename Body>
void on_one_device(const std::string& kind, int ranks, Body body) {
  const auto device = builtin_devices().make(kind);
  const auto world = builtin_worlds().make("threads", Mesh{{{"tp", ranks}}});
  std::vector<Ledger> ledgers(static_cast<std::size_t>(ranks));
  world->run([&](int rank) {
    const Turn turn(*device);
    const auto stream = device->make_stream();
    const auto tp = world->group(rank, {0}, *device, ledgers[static_cast<std::size_t>(rank)]);
    body(static_cast<std::size_t>(rank), *device, *stream, *tp);
  });
}

Tensor put(Device& device, Stream& stream, const HostTensor& host) {
  const Tensor tensor = device.allocate(stream, host.dtype(), host.rows(), host.cols());
  device.upload(stream, host, tensor);
  return tensor;
}

PerRank inputs_of(int ranks, DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  PerRank inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(varied(dtype, rows, cols, 100 * seed + static_cast<std::uint64_t>(rank)));
  }
  return inputs;
}

PerRank all_reduced(const std::string& kind, const PerRank& inputs, const ReduceSpec& spec) {
  PerRank results(inputs.size());
  on_one_device(kind, static_cast<int>(inputs.size()),
                [&](std::size_t rank, Device& device, Stream& stream, Communicator& tp) {
                  const HostTensor& input = inputs[rank];
                  const Tensor out = device.allocate(stream, input.dtype(), input.rows(), input.cols());
                  tp.all_reduce(stream, put(device, stream, input), spec, out, at("mlp.down_proj"));
                  results[rank] = device.to_host(stream, out);
                });
  return results;
}

/// Every rank's part of the reduction, and the whole gathered from the parts.
struct Scattered {
  PerRank parts, whole;
};
Scattered scattered(const std::string& kind, const PerRank& inputs, Dim dim, const Partition& part,
                    const ReduceSpec& spec) {
  Scattered results{PerRank(inputs.size()), PerRank(inputs.size())};
  on_one_device(
      kind, static_cast<int>(inputs.size()),
      [&](std::size_t rank, Device& device, Stream& stream, Communicator& tp) {
        const HostTensor& input = inputs[rank];
        const std::int64_t own = part.size(static_cast<int>(rank));
        const Tensor mine = device.allocate(stream, input.dtype(),
                                            dim == Dim::tokens ? own : input.rows(),
                                            dim == Dim::tokens ? input.cols() : own);
        const Tensor all = device.allocate(stream, input.dtype(), input.rows(), input.cols());
        tp.reduce_scatter(stream, put(device, stream, input), dim, part, spec, mine, at("o_proj"));
        tp.all_gather(stream, mine, dim, part, all, at("norm"));
        results.parts[rank] = device.to_host(stream, mine);
        results.whole[rank] = device.to_host(stream, all);
      });
  return results;
}

void expect_same_bits(const PerRank& gpu, const PerRank& cpu, const std::string& what) {
  ASSERT_EQ(gpu.size(), cpu.size());
  for (std::size_t rank = 0; rank < cpu.size(); ++rank) {
    EXPECT_TRUE(gpu[rank].bitwise_equal(cpu[rank])) << what << " on rank " << rank;
  }
}

constexpr ReduceOrder kOrders[] = {ReduceOrder::ring, ReduceOrder::tree, ReduceOrder::one_shot,
                                   ReduceOrder::two_shot, ReduceOrder::fixed_tree};

class GpuCollectives : public ::testing::TestWithParam<std::tuple<int, DType>> {};

TEST_P(GpuCollectives, AllReduceHasTheBitsOfTheCpu) {
  const auto [ranks, dtype] = GetParam();
  std::uint64_t seed = 1;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{3, 67}, {1, 1}, {0, 16}, {33, 1030}}) {
    for (const ReduceOrder order : kOrders) {
      for (const HopRounding hop : {HopRounding::wire, HopRounding::f32}) {
        const ReduceSpec spec{ReduceOp::sum, order, hop};
        const PerRank inputs = inputs_of(ranks, dtype, rows, cols, seed++);
        expect_same_bits(all_reduced(gpu_kind(), inputs, spec), all_reduced("cpu", inputs, spec),
                         fmt::format("{} {}, [{}, {}]", name(order), name(hop), rows, cols));
      }
    }
  }
}

TEST_P(GpuCollectives, MaximumHasTheBitsOfTheCpu) {
  const auto [ranks, dtype] = GetParam();
  const PerRank inputs = inputs_of(ranks, dtype, 5, 41, 7);
  const ReduceSpec spec{ReduceOp::max, ReduceOrder::ring, HopRounding::wire};
  expect_same_bits(all_reduced(gpu_kind(), inputs, spec), all_reduced("cpu", inputs, spec), "max");
}

TEST_P(GpuCollectives, ReduceScatterAndAllGatherHaveTheBitsOfTheCpu) {
  const auto [ranks, dtype] = GetParam();
  std::uint64_t seed = 40;
  for (const Dim dim : {Dim::tokens, Dim::features}) {
    for (const ReduceOrder order : kOrders) {
      const ReduceSpec spec{ReduceOp::sum, order, HopRounding::wire};
      const PerRank inputs = inputs_of(ranks, dtype, 7, 45, seed++);  // 7 tokens: on 8 ranks one has none
      const Partition part = Partition::balanced(dim == Dim::tokens ? 7 : 45, ranks);
      const Scattered gpu = scattered(gpu_kind(), inputs, dim, part, spec);
      const Scattered cpu = scattered("cpu", inputs, dim, part, spec);
      expect_same_bits(gpu.parts, cpu.parts, fmt::format("reduce_scatter {}", name(order)));
      expect_same_bits(gpu.whole, cpu.whole, fmt::format("all_gather after {}", name(order)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuCollectives,
                         ::testing::Combine(::testing::Values(2, 3, 4, 8),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& test) {
                           return fmt::format("{}ranks_{}", std::get<0>(test.param),
                                              name(std::get<1>(test.param)));
                         });

// The inputs tell orders apart: a device that took one order for another would not have passed above. (Two ranks have one
// sum whatever the order, so this is about four.)
TEST(GpuCollectivesInputs, DifferByOrder) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const PerRank inputs = inputs_of(4, dtype, 33, 67, 90);
    const auto cpu = [&](ReduceOrder order) {
      return all_reduced("cpu", inputs, {ReduceOp::sum, order, HopRounding::wire})[0];
    };
    const HostTensor ring = cpu(ReduceOrder::ring), tree = cpu(ReduceOrder::tree);
    EXPECT_FALSE(ring.bitwise_equal(tree)) << name(dtype);
    EXPECT_FALSE(ring.bitwise_equal(cpu(ReduceOrder::fixed_tree))) << name(dtype);
    EXPECT_FALSE(tree.bitwise_equal(cpu(ReduceOrder::fixed_tree))) << name(dtype);
  }
}

// Many collectives in a row on the same buffers: a rank that went on before its peers had read its input, or filled its
// output, would be seen in the last sum.
TEST(GpuCollectivesInARow, WaitForTheirPeers) {
  constexpr int kRanks = 4, kRounds = 24;
  const PerRank inputs = inputs_of(kRanks, DType::f32, 16, 257, 3);
  const auto last = [&](const std::string& kind) {
    PerRank results(inputs.size());
    on_one_device(kind, kRanks, [&](std::size_t rank, Device& device, Stream& stream, Communicator& tp) {
      const Tensor in = put(device, stream, inputs[rank]);
      const Tensor out = device.allocate(stream, in.dtype, in.rows, in.cols);
      for (int round = 0; round < kRounds; ++round) {
        tp.all_reduce(stream, in, {}, out, at("mlp.down_proj"));
        device.unary(stream, UnaryKind::silu, out, in);
      }
      results[rank] = device.to_host(stream, out);
    });
    return results;
  };
  const PerRank first = last(gpu_kind());
  for (std::size_t rank = 1; rank < first.size(); ++rank)
    EXPECT_TRUE(first[rank].bitwise_equal(first[0])) << rank;
  for (int again = 0; again < 3; ++again)
    expect_same_bits(last(gpu_kind()), first, "the same again");
}

}  // namespace
}  // namespace shardcheck::testing
