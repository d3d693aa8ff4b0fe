// SPDX-License-Identifier: Apache-2.0
// What every collective leaves in the ledger, and that ranks which never meet leave the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "model/error.hpp"
#include "sharded/comm/launch.hpp"
#include "tests/comm/ranks.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

/// One call of each kind over 3 ranks on [5, 8] bf16: parts of 3, 3 and 2 features, 2, 2 and 1 tokens.
void call_everything(Rank& rank, Communicator& tp) {
  const Partition features = Partition::balanced(8, 3);
  const Partition tokens = Partition::balanced(5, 3);
  const auto make = [&](std::int64_t rows, std::int64_t cols) {
    return rank.put(varied(DType::bf16, rows, cols, 1));
  };
  const std::int64_t own_features = features.size(tp.rank()), own_tokens = tokens.size(tp.rank());
  Stream& stream = rank.stream();
  tp.all_reduce(stream, make(5, 8), {ReduceOp::sum, ReduceOrder::tree, HopRounding::f32},
                make(5, 8), at("a"));
  tp.all_gather(stream, make(5, own_features), Dim::features, features, make(5, 8), at("b"));
  tp.reduce_scatter(stream, make(5, 8), Dim::tokens, tokens, {}, make(own_tokens, 8),
                    at("c", Phase::decode, 4));
  tp.all_to_all(stream, make(own_tokens, 8), Dim::features, features, Dim::tokens, tokens,
                make(5, own_features), at("d"));
  tp.broadcast(stream, make(5, 8), 1, make(5, 8), at("e"));
  tp.all_reduce(stream, make(0, 8), {}, make(0, 8), at("f"));
  if (tp.rank() == 0) tp.send(stream, make(2, 8), 2, at("g"));
  if (tp.rank() == 2) tp.recv(stream, make(2, 8), 0, at("g"));
}

LedgerRecord record(const std::string& what, const std::string& site, std::int64_t payload,
                    std::int64_t own) {
  LedgerRecord expected;
  expected.kind = LedgerRecord::Kind::collective;
  expected.site = site;
  expected.what = what;
  expected.group = "tp";
  expected.group_size = 3;
  expected.dtype = DType::bf16;
  expected.payload_bytes = payload;
  expected.own_bytes = own;
  return expected;
}

Ledger expected_ledger(int rank) {
  const std::int64_t own_features[] = {3, 3, 2}, own_tokens[] = {2, 2, 1};
  Ledger ledger = {record("all_reduce", "a", 80, 80),
                   record("all_gather", "b", 80, 5 * own_features[rank] * 2),
                   record("reduce_scatter", "c", 80, 80),
                   record("all_to_all", "d", 80, own_tokens[rank] * 8 * 2),
                   record("broadcast", "e", 80, 80),
                   record("all_reduce", "f", 0, 0)};
  ledger[0].reduction = {ReduceOp::sum, ReduceOrder::tree, HopRounding::f32};
  ledger[2].phase = Phase::decode;
  ledger[2].step = 4;
  if (rank == 0) ledger.push_back(record("send", "g", 32, 32));
  if (rank == 2) ledger.push_back(record("recv", "g", 32, 0));
  return ledger;
}

TEST(LedgerOfCollectives, HoldsOneRecordPerCallAndRank) {
  Ranks ranks(3);
  ranks.run([](Rank& rank) { call_everything(rank, *rank.over()); });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.ledgers[static_cast<std::size_t>(rank)], expected_ledger(rank)) << "rank " << rank;
  }
}

TEST(LedgerOfCollectives, IsTheSameAloneAndWithoutValues) {
  for (const std::string world : {"threads", "solo"}) {
    for (const std::string device : {"cpu", "meta"}) {
      Ranks ranks(Mesh{{{"tp", 3}}}, device, world);
      ranks.run([](Rank& rank) { call_everything(rank, *rank.over()); });
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(ranks.ledgers[static_cast<std::size_t>(rank)], expected_ledger(rank))
            << world << " on " << device;
      }
    }
  }
}

TEST(LedgerOfCollectives, NamesTheGroupByItsAxes) {
  Ranks ranks(Mesh{{{"dp", 2}, {"pp", 1}, {"tp", 2}}}, "meta", "threads");
  ranks.run([](Rank& rank) {
    for (const std::vector<std::string>& axes : {std::vector<std::string>{"tp"}, {"dp", "tp"}, {"pp"}}) {
      const Tensor out = rank.empty(DType::f32, 1, 2);
      rank.over(axes)->all_reduce(rank.stream(), rank.empty(DType::f32, 1, 2), {}, out, at("x"));
    }
  });
  for (const Ledger& ledger : ranks.ledgers) {
    ASSERT_EQ(ledger.size(), 2u);  // the group over pp has one rank: nothing is recorded
    EXPECT_EQ(ledger[0].group, "tp");
    EXPECT_EQ(ledger[0].group_size, 2);
    EXPECT_EQ(ledger[1].group, "dp,tp");
    EXPECT_EQ(ledger[1].group_size, 4);
  }
}

TEST(SoloWorld, ChecksOperandsAndNamesTheRank) {
  Ranks ranks(Mesh{{{"tp", 2}}}, "meta", "solo");
  try {
    ranks.run([](Rank& rank) {
      const Partition part = Partition::balanced(9, 2);
      const Tensor in = rank.empty(DType::f32, 2, 5);  // right on rank 0 only
      rank.over()->all_gather(rank.stream(), in, Dim::features, part, rank.empty(DType::f32, 2, 9),
                              at("lm_head"));
    });
    FAIL() << "rank 1's part has 4 elements";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(),
                 "rank 1: all_gather [2, 9] f32 at lm_head (prefill step 0) over tp: operands that "
                 "don't fit: in is "
                 "[2, 5], but this rank's part of features is 4 of 9 elements: [5,9)");
  }
}

// Nothing moves, so nothing may look like a result.
TEST(SoloWorld, LeavesReceiveBuffersPoisoned) {
  Ranks ranks(Mesh{{{"tp", 2}}}, "cpu", "solo");
  ranks.run([](Rank& rank) {
    const Tensor out = rank.put(varied(DType::f32, 2, 8, 1));
    rank.over()->all_reduce(rank.stream(), rank.put(varied(DType::f32, 2, 8, 2)), {}, out, at("x"));
    for (const double value : rank.get(out).to_f64()) EXPECT_TRUE(std::isnan(value));
  });
}

TEST(WorldRegistry, SaysWhatThereIsOfEachKind) {
  const WorldRegistry worlds = builtin_worlds();
  for (const std::string& kind : worlds.kinds()) EXPECT_NE(worlds.describe(kind), "") << kind;
}

/// Sets variables, or unsets them, for as long as it lives.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::optional<std::string>>& wanted) {
    for (const auto& [name, value] : wanted) {
      const char* const before = std::getenv(name.c_str());
      before_[name] = before == nullptr ? std::nullopt : std::optional<std::string>(before);
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) set(name, value);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
  std::map<std::string, std::optional<std::string>> before_;
};

TEST(WorldRegistry, MpiNeedsMpirun) {
  const Environment alone({{"OMPI_COMM_WORLD_SIZE", std::nullopt}, {"PMI_SIZE", std::nullopt}});
  ASSERT_FALSE(detect_launch().several());
  EXPECT_THROW(builtin_worlds().make("mpi", Mesh{{{"tp", 2}}}), InputError);
  EXPECT_EQ(default_world("cpu", 1, 4), "threads");
  EXPECT_EQ(default_world("cuda", 1, 4), "threads");  // ranks share the device
}

TEST(WorldRegistry, MpirunIsDetected) {
  const Environment started({{"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_RANK", "3"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  const Launch launch = detect_launch();
  EXPECT_EQ(launch.processes, 4);
  EXPECT_EQ(launch.process, 3);
  EXPECT_EQ(launch.local_processes, 2);
  EXPECT_EQ(launch.local_process, 1);
  EXPECT_EQ(default_world("cpu", 1, 4), "mpi");
}

TEST(WorldRegistry, NamesTheKindsThereAre) {
  const WorldRegistry worlds = builtin_worlds();
  EXPECT_EQ(worlds.kinds(),
            (std::vector<std::string>{"mpi", "mpi+nccl", "nccl", "solo", "threads"}));
  try {
    worlds.make("carrier pigeons", Mesh{{{"tp", 2}}});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(
        error.what(),
        "'carrier pigeons' is no kind of communicator; there are mpi, mpi+nccl, nccl, solo, "
        "threads");
  }
}

}  // namespace
}  // namespace shardcheck::testing
