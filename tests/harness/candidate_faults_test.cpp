// SPDX-License-Identifier: Apache-2.0
// What is wrong in the files of a run from outside: named by its first tap and its ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/harness/candidate_folder.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const std::vector<DType> kAll{DType::f64, DType::f32, DType::bf16, DType::f16};

TEST(CandidateFaults, TwoRanksFilesExchanged) {
  for (const DType dtype : kAll) {
    const CandidateFolder folder(run_in(dtype, 3));
    const CandidateFolder::Tensors one = folder.tensors(1), two = folder.tensors(2);
    folder.write(1, two);
    folder.write(2, one);
    expect_first(folder.compare(), "embed_tokens.partial", {1, 2});
  }
}

// In the manifest instead of on disk.
TEST(CandidateFaults, TwoRanksFilesExchangedInTheManifest) {
  const CandidateFolder folder(run_in(DType::bf16, 2, Phase::decode));
  folder.change_manifest([](Json& json) {
    json["ranks"][0]["file"] = "rank1.safetensors";
    json["ranks"][1]["file"] = "rank0.safetensors";
  });
  expect_first(folder.compare(), "embed_tokens.partial", {0, 1});
}

// Without partials of the embedding the first wrong place is the first value that is cut.
TEST(CandidateFaults, ExchangedFilesWithoutPartials) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const CandidateFolder folder(run_in(dtype, 4));
    for (int rank = 0; rank < 4; ++rank) {
      folder.change_file(rank, [](CandidateFolder::Tensors& all) {
        std::erase_if(all, [](const auto& item) { return item.first.ends_with(".partial"); });
      });
    }
    EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
    const CandidateFolder::Tensors one = folder.tensors(1), two = folder.tensors(2);
    folder.write(1, two);
    folder.write(2, one);
    expect_first(folder.compare(), "layers.0.self_attn.q_proj", {1, 2});
  }
}

TEST(CandidateFaults, NanIsFound) {
  for (const DType dtype : kAll) {
    for (const std::string tap : {"layers.1.mlp.act", "layers.0.self_attn.o_proj.partial",
                                  "layers.2.self_attn.v_cache", "lm_head"}) {
      const CandidateFolder folder(run_in(dtype, 3));
      folder.change_tensor(1, "prefill/" + tap, [](std::vector<double>& values) {
        values[7] = std::numeric_limits<double>::quiet_NaN();
      });
      const CandidateReport report = folder.compare();
      expect_first(report, tap, {1});
      EXPECT_THAT(report.first->cause, HasSubstr("nan"));
    }
  }
}

// Whichever rank it is. Where two replicas are all there are, the one further from the recomputation is named: that is
// certain only for values that are rounded once.
TEST(CandidateFaults, ReplicaChangedInOneBit) {
  for (const DType dtype : kAll) {
    for (const auto& [tp, rank] : std::vector<std::pair<int, int>>{{3, 2}, {3, 0}, {2, 0}, {2, 1}}) {
      for (const std::string tap :
           {"layers.1.post_attention_layernorm", "layers.0.self_attn.o_proj", "layers.2"}) {
        if (tp == 2 && tap.ends_with("norm")) continue;
        const CandidateFolder folder(run_in(dtype, tp));
        folder.change_file(rank, [&](CandidateFolder::Tensors& all) {
          const HostTensor old = all.at("prefill/" + tap);
          HostTensor flipped(old.dtype(), old.shape());
          std::copy_n(old.data(), old.bytes(), flipped.mutable_data());
          flipped.mutable_data()[old.bytes() / 2] ^= std::byte{1};
          all.at("prefill/" + tap) = flipped;
        });
        const CandidateReport report = folder.compare();
        expect_first(report, tap, {rank});
        EXPECT_THAT(candidate_table(report),
                    HasSubstr("first wrong tap: " + tap + " (rank " + std::to_string(rank) + ")"));
      }
    }
  }
}

// The logits are moved, not computed: which of three copies is the odd one is plain.
TEST(CandidateFaults, ReplicaOfTheLogitsChangedInOneBit) {
  for (const DType dtype : kAll) {
    const CandidateFolder folder(run_in(dtype, 2));
    folder.change_file(0, [&](CandidateFolder::Tensors& all) {
      const HostTensor old = all.at("prefill/lm_head");
      HostTensor flipped(old.dtype(), old.shape());
      std::copy_n(old.data(), old.bytes(), flipped.mutable_data());
      flipped.mutable_data()[old.bytes() / 2] ^= std::byte{1};
      all.at("prefill/lm_head") = flipped;
    });
    expect_first(folder.compare(), "lm_head", {0});
  }
}

/// One rank's columns of a row-parallel weight are `factor` times what they should be: so is its partial sum, and the
/// value after the reduction is what the sum of the ranks' partials then is.
void scale_columns(const CandidateFolder& folder, int ranks, int wrong, const std::string& module,
                   double factor, bool keep_partials) {
  std::vector<double> sum;
  HostTensor last;
  for (int rank = 0; rank < ranks; ++rank) {
    const HostTensor partial = folder.tensors(rank).at("prefill/" + module + ".partial");
    const std::vector<double> mine = partial.to_f64();
    sum.resize(mine.size(), 0.0);
    for (std::size_t i = 0; i < mine.size(); ++i)
      sum[i] += mine[i] * (rank == wrong ? factor : 1.0);
    last = partial;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    folder.change_file(rank, [&](CandidateFolder::Tensors& all) {
      const std::string partial = "prefill/" + module + ".partial";
      if (rank == wrong) {
        std::vector<double> scaled = all.at(partial).to_f64();
        for (double& value : scaled) value *= factor;
        all.at(partial) = round_to(last.dtype(), last.shape(), scaled);
      }
      all.at("prefill/" + module) = round_to(last.dtype(), last.shape(), sum);
      if (!keep_partials) all.erase(partial);
    });
  }
}

TEST(CandidateFaults, OneRanksColumnsScaledShowAtItsPartial) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int wrong : {0, 2}) {
      for (const std::string module :
           {"layers.0.self_attn.o_proj", "layers.1.self_attn.o_proj", "layers.2.mlp.down_proj"}) {
        const CandidateFolder folder(run_in(dtype, 3));
        scale_columns(folder, 3, wrong, module, 1.02, true);
        const CandidateReport report = folder.compare();
        expect_first(report, module + ".partial", {wrong});
        EXPECT_EQ(report.first->gate, Gate::g3);
      }
    }
  }
}

// The stranger's dump shows only o_proj and its input: the sum is off, and no rank of its own can be named.
TEST(CandidateFaults, OneRanksColumnsScaledShowWithoutPartials) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool only_two : {false, true}) {
      const std::string module = "layers.1.self_attn.o_proj";
      const CandidateFolder folder(run_in(dtype, 2));
      scale_columns(folder, 2, 1, module, only_two ? 1.02 : 1.0, false);
      if (only_two) {
        for (int rank = 0; rank < 2; ++rank) {
          folder.change_file(rank, [&](CandidateFolder::Tensors& all) {
            std::erase_if(all, [&](const auto& item) {
              return item.first != "prefill/" + module &&
                     item.first != "prefill/layers.1.self_attn.attn";
            });
          });
        }
        const CandidateReport report = folder.compare();
        EXPECT_EQ(report.compared, 2);
        expect_first(report, module, {0, 1});
        EXPECT_TRUE(report.first->all_ranks);
        EXPECT_EQ(report.first->gate, Gate::g3);
      } else {
        // With the factor 1 the same dump passes: what fails above is the two percent.
        EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
      }
    }
  }
}

// The same with the bias of another model, which such a dump can't show apart.
TEST(CandidateFaults, ScaledColumnsOfALinearWithBias) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double factor : {1.0, 1.02}) {
      const CandidateFolder folder(run_in(dtype, 2, Phase::prefill, "tiny-gpt2"));
      const std::string module = "h.1.mlp.c_proj";
      std::vector<double> bias(48);
      folder.model().read_rows(module + ".bias", 0, 48, bias);
      std::vector<double> sum;
      for (int rank = 0; rank < 2; ++rank) {
        const std::vector<double> mine = folder.tensors(rank).at("prefill/" + module + ".partial").to_f64();
        sum.resize(mine.size(), 0.0);
        for (std::size_t i = 0; i < mine.size(); ++i)
          sum[i] += mine[i] * (rank == 1 ? factor : 1.0);
      }
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += bias[i % 48];
      for (int rank = 0; rank < 2; ++rank) {
        folder.change_file(rank, [&](CandidateFolder::Tensors& all) {
          const HostTensor old = all.at("prefill/" + module);
          all = {{"prefill/" + module, round_to(old.dtype(), old.shape(), sum)},
                 {"prefill/h.1.mlp.act", all.at("prefill/h.1.mlp.act")}};
        });
      }
      const CandidateReport report = folder.compare();
      if (factor == 1.0) {
        EXPECT_TRUE(report.passed()) << describe(report);
      } else {
        expect_first(report, module, {0, 1});
      }
    }
  }
}

TEST(CandidateFaults, StaleCacheRow) {
  const CandidateFolder folder(run_in(DType::bf16, 2, Phase::decode));
  folder.change_tensor(1, "decode1/layers.1.self_attn.k_cache", [](std::vector<double>& values) {
    const std::size_t cols = 16;  // two kv heads of 8
    std::copy_n(values.end() - 2 * static_cast<std::ptrdiff_t>(cols), cols,
                values.end() - static_cast<std::ptrdiff_t>(cols));
  });
  const CandidateReport report = folder.compare();
  expect_first(report, "layers.1.self_attn.k_cache", {1});
  EXPECT_EQ(report.first->phase, Phase::decode);
  EXPECT_EQ(report.first->step, 1);
}

TEST(CandidateFaults, TensorMissingOnOneRank) {
  const CandidateFolder folder(run_in(DType::f32, 3));
  folder.change_file(
      1, [](CandidateFolder::Tensors& all) { all.erase("prefill/layers.1.mlp.up_proj"); });
  const CandidateReport report = folder.compare();
  expect_first(report, "layers.1.mlp.up_proj", {1});
  EXPECT_THAT(report.first->cause, HasSubstr("rank 1 has no such tensor"));
}

TEST(CandidateFaults, TensorMissingInOneStep) {
  const CandidateFolder folder(run_in(DType::f32, 2, Phase::decode));
  for (int rank = 0; rank < 2; ++rank) {
    folder.change_file(
        rank, [](CandidateFolder::Tensors& all) { all.erase("decode1/layers.0.mlp.act"); });
  }
  const CandidateReport report = folder.compare();
  expect_first(report, "layers.0.mlp.act", {0, 1});
  EXPECT_THAT(report.first->cause, HasSubstr("missing in decode step 1"));
}

TEST(CandidateFaults, ShapeThatThePlacementDoesNotGive) {
  const CandidateFolder folder(run_in(DType::f32, 2));
  folder.change_file(0, [](CandidateFolder::Tensors& all) {
    const HostTensor old = all.at("prefill/layers.1.mlp.act");
    all.at("prefill/layers.1.mlp.act") = round_to(
        old.dtype(), {old.shape()[0], 30},
        std::vector<double>(static_cast<std::size_t>(old.shape()[0] * 30), 0.5));
  });
  const CandidateReport report = folder.compare();
  expect_first(report, "layers.1.mlp.act", {0});
  EXPECT_THAT(report.first->cause,
              AllOf(HasSubstr("rank 0 has shape [14, 30]"), HasSubstr("[14, 68]")));
}

// A placement that lies: declared whole, but each rank holds its partial sum.
TEST(CandidateFaults, PartialDeclaredReplicated) {
  const CandidateFolder folder(run_in(DType::bf16, 2));
  for (int rank = 0; rank < 2; ++rank) {
    folder.change_file(rank, [](CandidateFolder::Tensors& all) {
      all.at("prefill/layers.1.mlp.down_proj") = all.at("prefill/layers.1.mlp.down_proj.partial");
      std::erase_if(all, [](const auto& item) { return item.first.ends_with(".partial"); });
    });
  }
  expect_first(folder.compare(), "layers.1.mlp.down_proj", {0, 1});
}

TEST(CandidateFaults, AFolderWithoutTensorsFails) {
  const CandidateFolder folder(run_in(DType::f32, 2));
  for (int rank = 0; rank < 2; ++rank)
    folder.change_file(rank, [](CandidateFolder::Tensors& all) { all.clear(); });
  EXPECT_FALSE(folder.compare().passed()) << "nothing compared is nothing shown";
}

TEST(CandidateFaults, ReportsAreWritten) {
  const CandidateFolder folder(run_in(DType::bf16, 2));
  folder.change_tensor(1, "prefill/layers.1.mlp.act",
                       [](std::vector<double>& values) { values[3] = -values[3] + 1.0; });
  const CandidateReport report = folder.compare();
  const Json json = Json::parse(candidate_json(report));
  EXPECT_EQ(json["schema"], "shardcheck.compare/1");
  EXPECT_EQ(json["verdict"], "failed");
  EXPECT_EQ(json["compared"], report.compared);
  EXPECT_EQ(json["unknown"], 0);
  EXPECT_EQ(json["first"]["tap"], "layers.1.mlp.act");
  EXPECT_EQ(json["first"]["ranks"], Json::array({1}));
  EXPECT_EQ(json["first"]["phase"], "prefill");
  EXPECT_EQ(json["first"]["local_index"], Json::array({0, 3}));
  EXPECT_EQ(json["first"]["index"], Json::array({0, 68 + 3}));
  EXPECT_EQ(json["worst"]["phase"], "prefill");
  EXPECT_THAT(
      candidate_table(report),
      AllOf(HasSubstr("first wrong tap: layers.1.mlp.act (rank 1)"), HasSubstr("failed: ")));
  const Json good = Json::parse(candidate_json(CandidateFolder(run_in(DType::bf16, 2)).compare()));
  EXPECT_EQ(good["verdict"], "passed");
  EXPECT_TRUE(good["first"].is_null());
}

}  // namespace
}  // namespace shardcheck::testing
