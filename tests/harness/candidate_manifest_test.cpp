// SPDX-License-Identifier: Apache-2.0
// What a candidate's files may say wrong: each is one message that names the file and what it must be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/candidate_folder.hpp"
#include "tests/model/input_error.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

RunOf small() {
  RunOf what;
  what.phase = Phase::decode;
  what.lengths = {6, 4};
  what.decode_steps = 2;
  return what;
}

TEST(CandidateManifest, EveryMistakeIsOneMessage) {
  using Change = std::function<void(Json&)>;
  struct Mistake {
    Change change;
    std::string says;
  };
  const std::vector<Mistake> mistakes{
      {[](Json& j) { j.erase("schema"); }, "needs \"schema\""},
      {[](Json& j) { j.erase("mesh"); }, "needs \"mesh\""},
      {[](Json& j) { j.erase("dtype"); }, "needs \"dtype\""},
      {[](Json& j) { j.erase("ids"); }, "needs \"ids\""},
      {[](Json& j) { j.erase("steps"); }, "needs \"steps\""},
      {[](Json& j) { j.erase("ranks"); }, "needs \"ranks\""},
      {[](Json& j) { j.erase("taps"); }, "needs \"taps\""},
      {[](Json& j) { j["schema"] = "shardcheck.taps/2"; },
       "\"shardcheck.taps/2\" is not \"shardcheck.taps/1\""},
      {[](Json& j) { j["schema"] = 1; }, "schema 1 is not"},
      {[](Json& j) { j["mehs"] = 1; }, "unknown key \"mehs\"; did you mean \"mesh\"?"},
      {[](Json& j) { j["mesh"] = 2; }, "\"mesh\" must be an object"},
      {[](Json& j) { j["mesh"] = Json::object(); }, "\"mesh\" must be an object"},
      {[](Json& j) { j["mesh"]["tp"] = 0; }, "mesh.tp must be an integer from 1 to 1024, not 0"},
      {[](Json& j) { j["mesh"]["tp"] = "2"; }, "mesh.tp must be an integer"},
      {[](Json& j) { j["mesh"]["tp"] = 2.0; }, "mesh.tp must be an integer"},
      {[](Json& j) {
         j["mesh"] = {{"a", 1024}, {"b", 1024}};
       },
       "more than 4096 ranks"},
      {[](Json& j) { j["dtype"] = "int8"; },
       "\"dtype\" must be f64, f32, bf16 or fp16, not \"int8\""},
      {[](Json& j) { j["dtype"] = nullptr; }, "\"dtype\" must be"},
      {[](Json& j) { j["wire"] = "q4_1"; }, "\"wire\" must be"},
      {[](Json& j) { j["reduction"] = "ring"; }, "\"reduction\" must be an object"},
      {[](Json& j) { j["reduction"]["order"] = "zigzag"; }, "\"reduction\": unknown order or hop"},
      {[](Json& j) { j["reduction"]["hop"] = 3; }, "reduction.hop must be a word"},
      {[](Json& j) { j["ids"] = 5; }, "\"ids\" must list"},
      {[](Json& j) { j["ids"] = Json::array(); }, "\"ids\" must list"},
      {[](Json& j) {
         j["ids"] = {1, 2, 3};
       },
       "\"ids\" must list"},
      {[](Json& j) { j["ids"][0][1] = 320; }, "an id must be an integer from 0 to 319, not 320"},
      {[](Json& j) { j["ids"][0][1] = -1; }, "an id must be an integer from 0 to 319, not -1"},
      {[](Json& j) { j["ids"][1][0] = "a"; }, "an id must be an integer"},
      {[](Json& j) { j["ids"][1][0] = 18446744073709551615U; }, "an id must be an integer"},
      {[](Json& j) { j["steps"] = Json::array(); }, "\"steps\" must be a list, not empty"},
      {[](Json& j) { j["steps"] = Json::object(); }, "\"steps\" must be a list"},
      {[](Json& j) { j["steps"][0] = 1; }, "every step needs phase, step and tokens"},
      {[](Json& j) { j["steps"][0].erase("tokens"); }, "every step needs phase, step and tokens"},
      {[](Json& j) { j["steps"][0]["phase"] = "warmup"; },
       "unknown phase \"warmup\"; use prefill or decode"},
      {[](Json& j) { j["steps"][0]["step"] = -1; }, "step must be an integer"},
      {[](Json& j) { j["steps"][2]["step"] = 0; }, "stands twice"},
      {[](Json& j) { j["steps"][0]["tokens"] = 4; }, "tokens must list [sequence, first, count]"},
      {[](Json& j) {
         j["steps"][0]["tokens"][0] = {0, 0};
       },
       "tokens must list [sequence, first, count]"},
      {[](Json& j) {
         j["steps"][0]["tokens"][0] = {2, 0, 1};
       },
       "a sequence must be an integer from 0 to 1, not 2"},
      {[](Json& j) {
         j["steps"][0]["tokens"][0] = {0, 0, 7};
       },
       "count must be an integer from 0 to 6, not 7"},
      {[](Json& j) { j["steps"][1]["tokens"][0][1] = 3; },
       "sequence 0 goes on at 3, but 4 tokens came before"},
      {[](Json& j) { j["ranks"] = 2; }, "\"ranks\" must list 2 ranks"},
      {[](Json& j) { j["ranks"].erase(1); },
       "\"ranks\" must list 2 ranks, one for each place of the mesh tp=2"},
      {[](Json& j) { j["ranks"][0].erase("file"); }, "every rank needs coord"},
      {[](Json& j) { j["ranks"][0]["coord"] = 0; }, "every rank needs coord"},
      {[](Json& j) {
         j["ranks"][0]["coord"] = {{"dp", 0}};
       },
       "a rank's coord lacks the axis tp"},
      {[](Json& j) { j["ranks"][0]["coord"]["tp"] = 2; },
       "coord.tp must be an integer from 0 to 1, not 2"},
      {[](Json& j) { j["ranks"][0]["coord"]["tp"] = 1; }, "rank 1 stands twice"},
      {[](Json& j) { j["taps"] = Json::array(); }, "\"taps\" must be an object of patterns"},
      {[](Json& j) { j["taps"].erase("layers.*.mlp.act"); },
       "\"taps\" gives no placement for layers.0.mlp.act; add a pattern"},
      {[](Json& j) { j["taps"]["norm"] = "R"; }, "taps.norm must be an object such as"},
      {[](Json& j) {
         j["taps"]["norm"] = {{"dp", "R"}};
       },
       "taps.norm: the mesh has no axis \"dp\""},
      {[](Json& j) {
         j["taps"]["norm"] = {{"tp", "S(rows)"}};
       },
       "taps.norm: unknown placement \"S(rows)\"; use R, S(features)"},
      {[](Json& j) {
         j["taps"]["norm"] = {{"tp", 3}};
       },
       "taps.norm: unknown placement \"3\""},
      {[](Json& j) {
         j["taps"]["norm"] = {{"tp", "R"}, {"ranges", Json::array()}};
       },
       "\"ranges\" needs a placement S(features)"},
      {[](Json& j) { j["taps"]["layers.*.mlp.act"]["ranges"] = 1; },
       "\"ranges\" must list, for each of the 2 ranks"},
      {[](Json& j) { j["taps"]["layers.*.mlp.act"]["ranges"].erase(1); },
       "\"ranges\" must list, for each of the 2 ranks"},
      {[](Json& j) { j["taps"]["layers.*.mlp.act"]["ranges"][0] = 5; }, "\"ranges\" must list"},
      {[](Json& j) {
         j["taps"]["layers.*.mlp.act"]["ranges"][0][0] = {0, 68, 3};
       },
       "\"ranges\" must list"},
      {[](Json& j) {
         j["taps"]["layers.*.mlp.act"]["ranges"][0][0] = {0, 137};
       },
       "a range's end must be an integer from 0 to 136, not 137"},
      {[](Json& j) {
         j["taps"]["layers.*.mlp.act"]["ranges"][0][0] = {9, 4};
       },
       "a range's end must be an integer from 9 to 136, not 4"},
      {[](Json& j) {
         j["taps"]["layers.*.mlp.act"]["ranges"][0][0] = {0, 67};
       },
       "the ranges cover [0,67)+[68,136) of [0,136); every element needs an owner"},
      {[](Json& j) {
         j["taps"]["embed_tokens.partial"]["ranges"][1] = {{160, 319}};
       },
       "taps.embed_tokens.partial: the ranges cover [0,319) of [0,320)"},
      {[](Json& j) {
         j["taps"]["embed_tokens.partial"]["ranges"][1] = {{160, 321}};
       },
       "a range's end must be an integer from 160 to 320, not 321"},
      {[](Json& j) { j["taps"]["layers.*.mlp.down_proj.partial"]["ranges"] = Json::array(); },
       "needs a placement S(features) or the like, or an embedding's P(sum)"},
  };
  const CandidateFolder folder(small());
  const Json good = folder.manifest();
  EXPECT_NO_THROW(folder.read());
  for (const Mistake& mistake : mistakes) {
    Json json = good;
    mistake.change(json);
    folder.write_manifest(json.dump());
    const std::string message = input_error([&] { folder.read(); });
    EXPECT_THAT(message, AllOf(HasSubstr("manifest.json: "), HasSubstr(mistake.says)));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }
}

TEST(CandidateManifest, TextThatIsNoManifest) {
  const CandidateFolder folder(small());
  for (const std::string text :
       {"", "[]", "{", "null", "3", "{\"schema\": \"shardcheck.taps/1\",}", "\xff\xfe"}) {
    folder.write_manifest(text);
    const std::string message = input_error([&] { folder.read(); });
    EXPECT_THAT(message, HasSubstr("manifest.json: ")) << text;
    EXPECT_THAT(message, Not(HasSubstr("\n"))) << text;
  }
}

// Every prefix of a manifest is refused, and none crashes.
TEST(CandidateManifest, TruncatedManifest) {
  const CandidateFolder folder(small());
  const std::string whole = folder.manifest().dump();
  for (std::size_t n = 0; n < whole.size(); n += 7) {
    folder.write_manifest(whole.substr(0, n));
    EXPECT_THROW(folder.read(), InputError) << n;
  }
}

TEST(CandidateManifest, FolderWithoutManifest) {
  const CandidateFolder folder(small());
  std::filesystem::remove(folder.path() / "manifest.json");
  EXPECT_THAT(input_error([&] { folder.read(); }), HasSubstr("no manifest.json here"));
}

TEST(CandidateManifest, RankFileMissing) {
  const CandidateFolder folder(small());
  std::filesystem::remove(folder.file(1));
  EXPECT_THAT(
      input_error([&] { folder.read(); }),
      AllOf(HasSubstr("rank1.safetensors: the file of rank 1 is missing"), HasSubstr("mesh tp=2")));
}

TEST(CandidateManifest, RankFileTruncated) {
  const CandidateFolder folder(small());
  std::filesystem::resize_file(folder.file(0), std::filesystem::file_size(folder.file(0)) - 5);
  EXPECT_THAT(input_error([&] { folder.read(); }), HasSubstr("rank0.safetensors"));
}

TEST(CandidateManifest, UnknownTapNamesTheNearest) {
  const CandidateFolder folder(small());
  folder.change_file(1, [](CandidateFolder::Tensors& all) {
    all.emplace("prefill/layers.1.mlp.donw_proj", all.at("prefill/layers.1.mlp.down_proj"));
  });
  const std::string message = input_error([&] { folder.read(); });
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("rank1.safetensors"), HasSubstr("no tap \"layers.1.mlp.donw_proj\""),
            HasSubstr("did you mean \"layers.1.mlp.down_proj\"?"), HasSubstr("--allow-unknown")));
  CandidateOptions options;
  options.allow_unknown = true;
  const CandidateReport report = folder.compare(options);
  EXPECT_TRUE(report.passed()) << describe(report);
  EXPECT_EQ(report.unknown, 1);
}

TEST(CandidateManifest, TensorOfNoStep) {
  for (const std::string name : {"decode9/norm", "prefill1/norm", "norm", "warmup/norm"}) {
    const CandidateFolder folder(small());
    folder.change_file(
        0, [&](CandidateFolder::Tensors& all) { all.emplace(name, all.at("prefill/norm")); });
    EXPECT_THAT(input_error([&] { folder.read(); }),
                AllOf(HasSubstr("rank0.safetensors: tensor \"" + name + "\" belongs to no step")));
  }
}

TEST(CandidateManifest, WrongDtype) {
  const CandidateFolder folder(small());
  folder.change_file(1, [](CandidateFolder::Tensors& all) {
    const HostTensor old = all.at("prefill/norm");
    all.at("prefill/norm") = round_to(DType::bf16, old.shape(), old.to_f64());
  });
  EXPECT_THAT(input_error([&] { folder.read(); }),
              AllOf(HasSubstr("rank1.safetensors"),
                    HasSubstr("\"prefill/norm\" is bf16, the manifest says f32")));
}

TEST(CandidateManifest, WrongNumberOfDimensions) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{6, 48, 1}, {1, 1, 6, 48}, {288}}) {
    const CandidateFolder folder(small());
    folder.change_file(1, [&](CandidateFolder::Tensors& all) {
      all.at("prefill/norm") = HostTensor(DType::f32, shape);
    });
    EXPECT_THAT(input_error([&] { folder.read(); }),
                AllOf(HasSubstr("\"prefill/norm\" has shape " + to_string(shape)),
                      HasSubstr("[1, tokens, features]")));
  }
}

// Two spellings of one name in a file: which of them counts must not be left to chance.
TEST(CandidateManifest, TensorUnderTwoNames) {
  const CandidateFolder folder(small());
  folder.change_file(0, [](CandidateFolder::Tensors& all) {
    all.emplace("prefill/model.norm",
                round_to(DType::f32, all.at("prefill/norm").shape(),
                         std::vector<double>(
                             static_cast<std::size_t>(all.at("prefill/norm").elements()), 0.25)));
  });
  EXPECT_THAT(input_error([&] { folder.read(); }),
              HasSubstr("rank0.safetensors: prefill/norm stands under two names"));
}

}  // namespace
}  // namespace shardcheck::testing
