// SPDX-License-Identifier: Apache-2.0
// A run that was written to files and is read back passes, however its names, shapes and placements are spelled.
#include "harness/candidate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/candidate_folder.hpp"

namespace shardcheck::testing {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<DType> kAll{DType::f64, DType::f32, DType::bf16, DType::f16};

// ---- as it was written ----

TEST(Candidate, RoundTripPassesInEveryDtypeAndPhase) {
  for (const std::string model : {"tiny-llama", "tiny-gpt2", "tiny-llama-bias", "tiny-mistral"}) {
    for (const DType dtype : kAll) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const CandidateFolder folder(run_in(dtype, 3, phase, model));
        const CandidateReport report = folder.compare();
        EXPECT_TRUE(report.passed())
            << model << " " << name(dtype) << " " << name(phase) << ": " << describe(report);
        EXPECT_GT(report.compared, 40);
        EXPECT_GT(report.scores.size(), 100u);
        EXPECT_EQ(report.unknown, 0);
      }
    }
  }
}

TEST(Candidate, RoundTripOfUnevenHeadsBatchesAndChunks) {
  for (const int tp : {2, 4, 9}) {
    RunOf what = run_in(DType::bf16, tp, Phase::decode, "tiny-odd-vocab");
    what.lengths = {5, 1, 11};
    what.chunk = 4;
    const CandidateFolder folder(what);
    EXPECT_TRUE(folder.compare().passed()) << tp << ": " << describe(folder.compare());
  }
}

TEST(Candidate, RoundTripOfWireAndOrder) {
  for (const ReduceOrder order : {ReduceOrder::ring, ReduceOrder::one_shot, ReduceOrder::fixed_tree}) {
    RunOf what = run_in(DType::bf16, 4);
    what.settings = {DType::bf16, DType::f32, {ReduceOp::sum, order, HopRounding::f32}};
    const CandidateFolder folder(what);
    EXPECT_EQ(folder.manifest()["wire"], "f32");
    EXPECT_EQ(folder.manifest()["reduction"]["order"], std::string(name(order)));
    const Candidate candidate = folder.read();
    EXPECT_TRUE(candidate.run.reduction == what.settings.reduction);
    EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
  }
}

TEST(Candidate, RoundTripOfTokensCutOverRanks) {
  RunOf what = run_in(DType::f32, 3);
  what.plan = kSequenceParallel;
  const CandidateFolder folder(what);
  EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
}

/// gpt2 with the residual stream cut along the tokens, each sum scattered and gathered at one point: its bias is added to
/// the rank's own tokens, between the two.
const char* const kScatterThenGather = R"plan({ "name": "scatter", "mesh": ["tp"],
  "weights": {
    "wte": {"tp": "shard(vocab)"}, "lm_head": {"tp": "shard(vocab)"},
    "h.*.attn.c_attn": {"tp": "shard(out by head)"}, "h.*.attn.c_proj": {"tp": "shard(in by head)"},
    "h.*.mlp.c_fc": {"tp": "shard(out)"}, "h.*.mlp.c_proj": {"tp": "shard(in)"} },
  "collectives": {
    "wte.out": "all_reduce(sum, tp)",
    "h.*.{attn,mlp}.c_proj.out": ["reduce_scatter(sum, tokens, tp)", "all_gather(tokens, tp)"],
    "lm_head.out": "all_gather(vocab, tp)" } })plan";

TEST(Candidate, RoundTripOfABiasBetweenTwoCollectives) {
  for (const DType dtype : kAll) {
    RunOf what = run_in(dtype, 3, Phase::decode, "tiny-gpt2");
    what.plan = kScatterThenGather;
    const CandidateFolder folder(what);
    EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
    // Any of the stages may be missing: what is there is judged by what is there.
    for (const std::string gone : {".partial", ".reduced", ".reduced.1"}) {
      const CandidateFolder fewer(what);
      for (int rank = 0; rank < 3; ++rank) {
        fewer.change_file(rank, [&](CandidateFolder::Tensors& all) {
          std::erase_if(all, [&](const auto& item) { return item.first.ends_with("c_proj" + gone); });
        });
      }
      EXPECT_TRUE(fewer.compare().passed()) << gone << ": " << describe(fewer.compare());
    }
    folder.change_tensor(0, "decode2/h.1.mlp.c_proj.reduced.1",
                         [](std::vector<double>& values) { values[3] += 0.5; });
    expect_first(folder.compare(), "h.1.mlp.c_proj.reduced.1", {0});
  }
}

/// The vocabulary in pieces of ceil(n / P) rows: 65, 65, 65, 62 of 257, where the balanced cut has 65, 64, 64, 64.
const char* const kChunks = R"plan({ "name": "chunks", "mesh": ["tp"],
  "weights": { "embed_tokens": {"tp": "shard(vocab by chunk)"}, "lm_head": {"tp": "shard(vocab by chunk)"} },
  "collectives": { "embed_tokens.out": "all_reduce(sum, tp)", "lm_head.out": "all_gather(vocab, tp)" } })plan";

TEST(Candidate, RoundTripOfAnUnevenVocabulary) {
  RunOf what = run_in(DType::bf16, 4, Phase::decode, "tiny-odd-vocab");
  what.plan = kChunks;
  const CandidateFolder folder(what);
  EXPECT_EQ(folder.manifest()["taps"]["embed_tokens.partial"]["ranges"][3],
            Json::parse("[[195, 257]]"));
  EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
  // Without the ranges the rows are taken for the balanced cut's: border tokens then come from another rank's rows.
  folder.change_manifest([](Json& json) { json["taps"]["embed_tokens.partial"].erase("ranges"); });
  const CandidateReport report = folder.compare();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->tap, "embed_tokens.partial");
}

/// Both axes cut the vocabulary and the MLP; sums are over one axis after the other, or over both at once.
const char* const kTwoAxes = R"plan({ "name": "two", "mesh": ["x", "y"],
  "weights": {
    "embed_tokens": {"x": "shard(vocab)", "y": "shard(vocab)"}, "lm_head": {"x": "shard(vocab)", "y": "shard(vocab)"},
    "layers.*.mlp.{gate,up}_proj": {"x": "shard(out)", "y": "shard(out)"},
    "layers.*.mlp.down_proj": {"x": "shard(in)", "y": "shard(in)"} },
  "collectives": {
    "embed_tokens.out": "all_reduce(sum, [x, y])",
    "layers.*.mlp.down_proj.out": ["all_reduce(sum, x)", "all_reduce(sum, y)"],
    "lm_head.out": "all_gather(vocab, [x, y])" } })plan";

TEST(Candidate, RoundTripOfTwoAxes) {
  for (const DType wire : {DType::bf16, DType::f32}) {
    RunOf what = run_in(DType::bf16);
    what.plan = kTwoAxes;
    what.mesh = Mesh{{{"x", 2}, {"y", 3}}};
    what.settings.wire = wire;
    const CandidateFolder folder(what);
    EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
    // The balanced cut of a balanced cut needs no ranges.
    folder.change_manifest([](Json& json) { json["taps"]["embed_tokens.partial"].erase("ranges"); });
    EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
    folder.change_tensor(4, "prefill/layers.1.mlp.down_proj.reduced",
                         [](std::vector<double>& values) { values[9] += 0.25; });
    expect_first(folder.compare(), "layers.1.mlp.down_proj.reduced", {4});
  }
}

TEST(Candidate, OneRankPasses) {
  const CandidateFolder folder(run_in(DType::bf16, 1));
  EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
}

TEST(Candidate, ReadsBackWhatWasWritten) {
  const CandidateFolder folder(run_in(DType::bf16, 3, Phase::decode));
  const Candidate candidate = folder.read();
  const TapRun& before = folder.ran().taps;
  ASSERT_EQ(candidate.run.steps.size(), before.steps.size());
  EXPECT_EQ(candidate.sequences, folder.ran().sequences);
  for (std::size_t s = 0; s < before.steps.size(); ++s) {
    EXPECT_EQ(candidate.run.steps[s].step.ids, before.steps[s].step.ids);
    EXPECT_EQ(candidate.run.steps[s].step.sequences, before.steps[s].step.sequences);
    for (const TapValue& value : before.steps[s].values) {
      const TapValue* read = candidate.run.steps[s].find(value.name);
      ASSERT_NE(read, nullptr) << value.name;
      EXPECT_EQ(read->layout, value.layout) << value.name;
      for (std::size_t rank = 0; rank < value.ranks.size(); ++rank)
        EXPECT_TRUE(read->ranks[rank].bitwise_equal(value.ranks[rank])) << value.name;
    }
  }
}

TEST(Candidate, WritesNothingBesideTheFiles) {
  const CandidateFolder folder(run_in(DType::f32, 2));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("manifest.json", "rank0.safetensors",
                                                     "rank1.safetensors"));
}

// ---- spelled differently, as other programs write ----

TEST(Candidate, PrefixedNamesMeanTheSame) {
  const CandidateFolder folder(run_in(DType::bf16, 2));
  for (int rank = 0; rank < 2; ++rank) {
    folder.change_file(rank, [](CandidateFolder::Tensors& all) {
      CandidateFolder::Tensors renamed;
      for (const auto& [name, tensor] : all) {
        const std::string tap = name.substr(name.find('/') + 1);
        renamed.emplace(
            "prefill/" + std::string(tap.rfind("lm_head", 0) == 0 ? "" : "model.") + tap, tensor);
      }
      all = renamed;
    });
  }
  const CandidateReport report = folder.compare();
  EXPECT_TRUE(report.passed()) << describe(report);
  EXPECT_EQ(report.compared, static_cast<std::int64_t>(folder.ran().taps.steps[0].values.size()));
}

TEST(Candidate, PrefixedPatternsMeanTheSame) {
  const CandidateFolder folder(run_in(DType::bf16, 2));
  folder.change_manifest([](Json& json) {
    Json taps;
    for (const auto& [pattern, placement] : json["taps"].items())
      taps[pattern.rfind("lm_head", 0) == 0 ? pattern : "model." + pattern] = placement;
    json["taps"] = taps;
  });
  const CandidateReport report = folder.compare();
  EXPECT_TRUE(report.passed()) << describe(report);
}

TEST(Candidate, BatchedShapesMeanTheSame) {
  const CandidateFolder folder(run_in(DType::f32, 2));
  for (int rank = 0; rank < 2; ++rank) {
    folder.change_file(rank, [](CandidateFolder::Tensors& all) {
      for (auto& [name, tensor] : all)
        tensor = tensor.reshaped({1, tensor.shape()[0], tensor.shape()[1]});
    });
  }
  const CandidateReport report = folder.compare();
  EXPECT_TRUE(report.passed()) << describe(report);
}

/// The balanced cuts by the words of a plan, instead of ranges.
Json megatron_words() {
  return Json::parse(R"plan({
    "*": {"tp": "R"}, "layers.*": {"tp": "R"}, "layers.*.*": {"tp": "R"}, "layers.*.self_attn.resid": {"tp": "R"},
    "embed_tokens.partial": {"tp": "P(sum)"}, "lm_head.partial": {"tp": "S(vocab)"},
    "layers.*.self_attn.q_proj": {"tp": "S(head)"}, "layers.*.self_attn.{k,v}_proj": {"tp": "S(kv_head)"},
    "layers.*.self_attn.q_rot": {"tp": "S(head)"}, "layers.*.self_attn.k_rot": {"tp": "S(kv_head)"},
    "layers.*.self_attn.{k,v}_cache": {"tp": "S(kv_head)"}, "layers.*.self_attn.attn": {"tp": "S(head)"},
    "layers.*.self_attn.o_proj": {"tp": "R"}, "layers.*.self_attn.o_proj.partial": {"tp": "P(sum)"},
    "layers.*.mlp.{gate,up}_proj": {"tp": "S(features)"}, "layers.*.mlp.act": {"tp": "S(features)"},
    "layers.*.mlp.down_proj": {"tp": "R"}, "layers.*.mlp.down_proj.partial": {"tp": "P(sum)"}})plan");
}

TEST(Candidate, CutsByWordWithoutRanges) {
  for (const auto& [model, tp] : std::vector<std::pair<std::string, int>>{{"tiny-llama", 2},
                                                                          {"tiny-llama", 3},
                                                                          {"tiny-odd-vocab", 4},
                                                                          {"tiny-odd-vocab", 2},
                                                                          {"tiny-odd-vocab", 9}}) {
    const CandidateFolder folder(run_in(DType::bf16, tp, Phase::decode, model));
    folder.change_manifest([](Json& json) { json["taps"] = megatron_words(); });
    const CandidateReport report = folder.compare();
    EXPECT_TRUE(report.passed()) << model << " tp " << tp << ": " << describe(report);
    const Candidate candidate = folder.read();
    for (const TapValue& value : folder.ran().taps.steps[0].values) {
      EXPECT_EQ(candidate.run.steps[0].find(value.name)->layout.owned, value.layout.owned)
          << value.name;
    }
  }
}

TEST(Candidate, AnExactNameWinsOverAPattern) {
  for (const bool exact_first : {false, true}) {
    const CandidateFolder folder(run_in(DType::f32, 2));
    folder.change_manifest([&](Json& json) {
      const Json right = json["taps"]["layers.*.mlp.act"];
      json["taps"].erase("layers.*.mlp.act");
      Json taps;
      if (!exact_first) taps["layers.*.mlp.act"] = {{"tp", "R"}};
      for (int layer = 0; layer < 3; ++layer)
        taps["layers." + std::to_string(layer) + ".mlp.act"] = right;
      if (exact_first) taps["layers.*.mlp.act"] = {{"tp", "R"}};
      for (const auto& [pattern, placement] : json["taps"].items()) taps[pattern] = placement;
      json["taps"] = taps;
    });
    const CandidateReport report = folder.compare();
    EXPECT_TRUE(report.passed()) << describe(report);
  }
}

}  // namespace
}  // namespace shardcheck::testing
