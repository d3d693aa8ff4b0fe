// SPDX-License-Identifier: Apache-2.0
// Ranks that mean different collectives get an error that names each call and what differs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/error.hpp"
#include "tests/comm/ranks.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// The message of the CommError that stops two ranks; they run `body` of their own.
std::string error_of(const std::function<void(Rank&)>& rank0, const std::function<void(Rank&)>& rank1) {
  Ranks ranks(2);
  try {
    ranks.run([&](Rank& rank) { rank.index == 0 ? rank0(rank) : rank1(rank); });
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

/// An all_reduce in which each property can be another one.
struct Reduce {
  std::int64_t rows = 5, cols = 48;
  DType dtype = DType::bf16;
  ReduceSpec spec = {};
  CallSite site = at("layers.0.mlp.down_proj");

  void operator()(Rank& rank) const {
    rank.over()->all_reduce(rank.stream(), rank.put(varied(dtype, rows, cols, 1)), spec,
                            rank.empty(dtype, rows, cols), site);
  }
};

TEST(Agreement, SameCallsAgree) { EXPECT_EQ(error_of(Reduce(), Reduce()), "no error"); }

TEST(Agreement, Shape) {
  EXPECT_EQ(error_of(Reduce(), Reduce{.cols = 47}),
            "the ranks of group tp disagree about the shape of the whole tensor: rank 0: "
            "all_reduce [5, 48] bf16 at "
            "layers.0.mlp.down_proj (prefill step 0); rank 1: all_reduce [5, 47] bf16 at "
            "layers.0.mlp.down_proj "
            "(prefill step 0). Every rank must issue the same collectives in the same order.");
  EXPECT_THAT(error_of(Reduce{.rows = 0}, Reduce()), HasSubstr("the shape of the whole tensor"));
}

TEST(Agreement, DType) {
  EXPECT_THAT(error_of(Reduce{.dtype = DType::f32}, Reduce()),
              AllOf(HasSubstr("dtype on the wire"),
                    HasSubstr("rank 0: all_reduce [5, 48] f32 at layers.0.mlp"),
                    HasSubstr("rank 1: all_reduce [5, 48] bf16 at layers.0.mlp")));
}

TEST(Agreement, Site) {
  EXPECT_THAT(error_of(Reduce{.site = at("layers.0.self_attn.o_proj")}, Reduce()),
              AllOf(HasSubstr("where they are in the program"),
                    HasSubstr("at layers.0.self_attn.o_proj"), HasSubstr("at layers.0.mlp.down_proj")));
  EXPECT_THAT(error_of(Reduce{.site = at("a", Phase::decode)}, Reduce{.site = at("a")}),
              AllOf(HasSubstr("(decode step 0)"), HasSubstr("(prefill step 0)")));
  EXPECT_THAT(
      error_of(Reduce{.site = at("a", Phase::decode, 3)}, Reduce{.site = at("a", Phase::decode, 4)}),
      AllOf(HasSubstr("(decode step 3)"), HasSubstr("(decode step 4)")));
}

TEST(Agreement, Reduction) {
  EXPECT_THAT(error_of(Reduce{.spec = {.op = ReduceOp::max}}, Reduce()),
              AllOf(HasSubstr("the reduction"), HasSubstr(", max in order ring"),
                    HasSubstr(", sum in order ring")));
  EXPECT_THAT(error_of(Reduce(), Reduce{.spec = {.order = ReduceOrder::tree}}),
              AllOf(HasSubstr("order ring"), HasSubstr("order tree")));
  EXPECT_THAT(error_of(Reduce(), Reduce{.spec = {.hop = HopRounding::f32}}),
              AllOf(HasSubstr("hops in wire"), HasSubstr("hops in f32")));
}

TEST(Agreement, Kind) {
  const auto broadcast = [](Rank& rank) {
    const Tensor value = rank.put(varied(DType::bf16, 5, 48, 1));
    rank.over()->broadcast(rank.stream(), value, 0, rank.empty(DType::bf16, 5, 48),
                           at("layers.0.mlp.down_proj"));
  };
  EXPECT_THAT(error_of(Reduce(), broadcast),
              AllOf(HasSubstr("the kind of collective"), HasSubstr("rank 0: all_reduce"),
                    HasSubstr("rank 1: broadcast")));
}

TEST(Agreement, Root) {
  const auto broadcast = [](int root) {
    return [root](Rank& rank) {
      const Tensor value = rank.put(varied(DType::bf16, 5, 48, 1));
      rank.over()->broadcast(rank.stream(), value, root, rank.empty(DType::bf16, 5, 48), at("norm"));
    };
  };
  EXPECT_THAT(error_of(broadcast(0), broadcast(1)),
              AllOf(HasSubstr("the root"), HasSubstr("root rank 1")));
}

TEST(Agreement, PartitionAndDimension) {
  const auto gather = [](Dim dim, Ranges first, Ranges second) {
    return [=](Rank& rank) {
      const Partition part(4, {first, second});
      const std::int64_t own = part.size(rank.index);
      const bool rows = dim == Dim::tokens;
      const Tensor in = rank.put(varied(DType::f32, rows ? own : 4, rows ? 4 : own, 1));
      rank.over()->all_gather(rank.stream(), in, dim, part, rank.empty(DType::f32, 4, 4),
                              at("lm_head"));
    };
  };
  EXPECT_THAT(
      error_of(gather(Dim::features, {{0, 2}}, {{2, 4}}), gather(Dim::features, {{0, 1}}, {{1, 4}})),
      AllOf(HasSubstr("the partition:"), HasSubstr("of 4: [0,2) [2,4)"),
            HasSubstr("of 4: [0,1) [1,4)")));
  EXPECT_THAT(
      error_of(gather(Dim::features, {{0, 2}}, {{2, 4}}), gather(Dim::tokens, {{0, 2}}, {{2, 4}})),
      AllOf(HasSubstr("the dimension"), HasSubstr(", features"), HasSubstr(", tokens")));
}

TEST(Agreement, PartitionsOfAnExchange) {
  const auto exchange = [](std::int64_t split_border, std::int64_t concat_border) {
    return [=](Rank& rank) {
      const Partition features(4, {{{0, split_border}}, {{split_border, 4}}});
      const Partition tokens(6, {{{0, concat_border}}, {{concat_border, 6}}});
      const Tensor in = rank.put(varied(DType::f32, tokens.size(rank.index), 4, 1));
      const Tensor out = rank.empty(DType::f32, 6, features.size(rank.index));
      rank.over()->all_to_all(rank.stream(), in, Dim::features, features, Dim::tokens, tokens, out,
                              at("q_proj"));
    };
  };
  EXPECT_EQ(error_of(exchange(2, 3), exchange(2, 3)), "no error");
  EXPECT_THAT(error_of(exchange(2, 3), exchange(1, 3)), HasSubstr("about the partition:"));
  EXPECT_THAT(error_of(exchange(2, 3), exchange(2, 2)),
              HasSubstr("the partition of the concatenated dimension"));
}

TEST(Agreement, SequenceNumber) {
  const auto calls = [](bool one_communicator) {
    return [=](Rank& rank) {
      const Tensor in = rank.put(varied(DType::f32, 2, 3, 1));
      const Tensor out = rank.empty(DType::f32, 2, 3);
      const auto first = rank.over();
      const auto second = rank.over();
      first->all_reduce(rank.stream(), in, {}, out, at("a"));
      (one_communicator ? first : second)->all_reduce(rank.stream(), in, {}, out, at("b"));
    };
  };
  EXPECT_THAT(error_of(calls(true), calls(false)),
              AllOf(HasSubstr("the sequence number"), HasSubstr("call 1 of"), HasSubstr("call 0 of")));
}

TEST(Agreement, Messages) {
  const auto send = [](Rank& rank) {
    rank.over()->send(rank.stream(), rank.put(varied(DType::f32, 2, 3, 1)), 1, at("layers.3"));
  };
  const auto receive = [](DType dtype, std::int64_t rows) {
    return [=](Rank& rank) {
      rank.over()->recv(rank.stream(), rank.empty(dtype, rows, 3), 0, at("layers.4.in"));
    };
  };
  EXPECT_EQ(error_of(send, receive(DType::f32, 2)), "no error");
  EXPECT_THAT(error_of(send, receive(DType::f32, 4)),
              AllOf(HasSubstr("the shape"), HasSubstr("rank 0: send to rank 1 [2, 3] f32 at layers.3"),
                    HasSubstr("rank 1: recv from rank 0 [4, 3] f32 at layers.4.in")));
  EXPECT_THAT(error_of(send, receive(DType::bf16, 2)), HasSubstr("the dtype"));
}

// ---- a rank's own operands ---------------------------------------------------------------------------------------

std::string defect_of(const std::function<void(Rank&, Communicator&, bool)>& call) {
  return error_of([&](Rank& rank) { call(rank, *rank.over(), false); },
                  [&](Rank& rank) { call(rank, *rank.over(), true); });
}

TEST(Operands, LocalExtentIsThisRanksPart) {
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Partition part = Partition::balanced(9, 2);
                const Tensor in = rank.empty(DType::f32, 2, part.size(rank.index) + (wrong ? 1 : 0));
                tp.all_gather(rank.stream(), in, Dim::features, part, rank.empty(DType::f32, 2, 9),
                              at("lm_head"));
              }),
              AllOf(HasSubstr("rank 1 calls all_gather over tp with operands that don't fit: in is "
                              "[2, 5], but this "
                              "rank's part of features is 4 of 9 elements: [5,9)"),
                    HasSubstr("rank 0: all_gather [2, 9] f32 at lm_head"),
                    HasSubstr("rank 1: all_gather [2, 9] f32 at lm_head")));
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Partition part = Partition::balanced(5, 2);
                const Tensor out = rank.empty(DType::f32, part.size(rank.index) + (wrong ? 1 : 0), 8);
                tp.reduce_scatter(rank.stream(), rank.empty(DType::f32, 5, 8), Dim::tokens, part,
                                  {}, out, at("o_proj"));
              }),
              HasSubstr("out is [3, 8], but this rank's part of tokens is 2 of 5 elements"));
}

TEST(Operands, WholeExtentIsThePartitions) {
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Partition part = Partition::balanced(9, 2);
                const Tensor in = rank.empty(DType::f32, 2, part.size(rank.index));
                tp.all_gather(rank.stream(), in, Dim::features, part,
                              rank.empty(DType::f32, 2, wrong ? 10 : 9), at("x"));
              }),
              HasSubstr("out is [2, 10], but the whole of features has 9 elements"));
}

TEST(Operands, OutHasTheShapeAndDTypeOfIn) {
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Tensor out = rank.empty(DType::f32, wrong ? 3 : 2, 9);
                tp.all_reduce(rank.stream(), rank.empty(DType::f32, 2, 9), {}, out, at("x"));
              }),
              HasSubstr("in is [2, 9], out is [3, 9]: they must have one shape"));
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Tensor out = rank.empty(wrong ? DType::bf16 : DType::f32, 2, 9);
                tp.all_reduce(rank.stream(), rank.empty(DType::f32, 2, 9), {}, out, at("x"));
              }),
              HasSubstr("in is f32, out is bf16"));
}

TEST(Operands, OutIsNotIn) {
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Tensor both = rank.empty(DType::f32, 4, 9);
                tp.all_reduce(rank.stream(), both.row_range(0, 2), {},
                              both.row_range(wrong ? 1 : 2, wrong ? 3 : 4), at("x"));
              }),
              HasSubstr("out overlaps in"));
}

TEST(Operands, ReductionsAreContiguous) {
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Tensor wide = rank.empty(DType::f32, 2, wrong ? 10 : 9);
                tp.all_reduce(rank.stream(), wide.col_range(0, 9), {}, rank.empty(DType::f32, 2, 9),
                              at("x"));
              }),
              HasSubstr("in [2, 9] is strided"));
}

TEST(Operands, PartitionFitsTheGroup) {
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Partition part = Partition::balanced(4, wrong ? 3 : 2);
                tp.all_gather(rank.stream(), rank.empty(DType::f32, 1, 2), Dim::features, part,
                              rank.empty(DType::f32, 1, 4), at("x"));
              }),
              HasSubstr("the partition of features has 3 parts, the group tp has 2 ranks"));
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Partition part(4, {{{0, 2}}, {{2, wrong ? 5 : 4}}});
                tp.all_gather(rank.stream(), rank.empty(DType::f32, 1, 2), Dim::features, part,
                              rank.empty(DType::f32, 1, 4), at("x"));
              }),
              HasSubstr("gives rank 1 the range [2,5) of 4 elements"));
}

TEST(Operands, PeersAreInTheGroup) {
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                const Tensor value = rank.empty(DType::f32, 1, 2);
                tp.broadcast(rank.stream(), value, wrong ? 2 : 1, rank.empty(DType::f32, 1, 2),
                             at("x"));
              }),
              HasSubstr("root 2 is not in the group tp of 2 ranks"));
  EXPECT_THAT(defect_of([](Rank& rank, Communicator& tp, bool wrong) {
                if (wrong) tp.send(rank.stream(), rank.empty(DType::f32, 1, 2), 1, at("layers.3"));
              }),
              AllOf(HasSubstr("rank 1: send"), HasSubstr("receiver 1 is this rank itself")));
}

}  // namespace
}  // namespace shardcheck::testing
