// SPDX-License-Identifier: Apache-2.0
// Whatever is wrong with the input: one message that says where and what to do, exit 2, no crash, no output file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "model/safetensors.hpp"
#include "tests/cli/program_run.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A model's folder, to be spoilt.
class SpoiltModel {
 public:
  explicit SpoiltModel(const std::string& model = "tiny-llama") {
    const std::filesystem::path source = std::filesystem::path(SHARDCHECK_SOURCE_DIR) /
                                         "fixtures/models" / model;
    for (const char* file : {"config.json", "model.safetensors"})
      std::filesystem::copy(source / file, path() / file);
  }
  std::filesystem::path path() const { return folder_.path(); }
  std::filesystem::path weights() const { return path() / "model.safetensors"; }

  void replace_in_config(const std::string& what, const std::string& by) const {
    std::string text = read_all(path() / "config.json");
    const std::size_t at = text.find(what);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, what.size(), by);
    folder_.write("config.json", text);
  }
  template <typename Change>
  void change_weights(Change change) const {
    std::map<std::string, HostTensor> tensors;
    {
      const SafetensorsFile file = SafetensorsFile::open(weights());
      for (const std::string& name : file.names()) {
        const HostTensor mapped = file.tensor(name);
        tensors.emplace(name, round_to(mapped.dtype(), mapped.shape(), mapped.to_f64()));
      }
    }
    change(tensors);
    const std::vector<std::pair<std::string, HostTensor>> list(tensors.begin(), tensors.end());
    write_safetensors(weights(), list);
  }
  std::string verify() const {
    return "verify " + path().string() + " --tp 2 --dtype f32 --phase prefill";
  }

 private:
  TempFolder folder_;
};

TEST(BadInput, Usage) {
  EXPECT_THAT(refused(""), HasSubstr("name a command, verify, compare, cost, lint, prove, plan, faults, info"));
  EXPECT_THAT(refused("verfy tiny-llama"),
              HasSubstr("unknown command \"verfy\"; did you mean \"verify\"?"));
  EXPECT_THAT(refused("verify tiny-llama --tokns 5"),
              HasSubstr("unknown option \"--tokns\"; did you mean \"--tokens\"?"));
  EXPECT_THAT(refused("verify tiny-llama surplus"), HasSubstr("\"surplus\" was not expected"));
  EXPECT_THAT(refused("verify tiny-llama --tokens five"), HasSubstr("--tokens"));
  EXPECT_THAT(refused("verify tiny-llama --tp"), HasSubstr("--tp"));
  EXPECT_THAT(refused("verify"), HasSubstr("no model given"));
  EXPECT_THAT(refused("verify tiny-llama --model tiny-gpt2"),
              HasSubstr("the model is given twice"));
  EXPECT_THAT(refused("compare tiny-llama"), HasSubstr("--golden FILE or --candidate DIR"));
}

TEST(BadInput, NamesThatDoNotExist) {
  EXPECT_THAT(refused("verify tiny-lama"), HasSubstr("(nearest: \"tiny-llama\")"));
  EXPECT_THAT(refused("verify tiny-llama --plan megatrn"),
              HasSubstr("(nearest shipped name: \"megatron\")"));
  EXPECT_THAT(refused("cost llama-3-70"), HasSubstr("(nearest: \"llama-3-70b\")"));
  EXPECT_THAT(refused("cost llama-3-8b --link nvlink9"), HasSubstr("nearest shipped name"));
  EXPECT_THAT(refused("cost llama-3-8b --gpu h10"), HasSubstr("nearest shipped name"));
  EXPECT_THAT(refused("compare tiny-llama --golden nowhere.safetensors"),
              HasSubstr("nowhere.safetensors"));
  EXPECT_THAT(refused("compare tiny-llama --candidate nowhere"), HasSubstr("no manifest.json"));
  EXPECT_THAT(refused("verify tiny-llama --ids nowhere.txt"), HasSubstr("nowhere.txt"));
  EXPECT_THAT(refused("verify tiny-llama --device abacus"),
              AllOf(HasSubstr("abacus"), HasSubstr("cpu")));
}

TEST(BadInput, GroupSizes) {
  EXPECT_THAT(refused("verify tiny-llama --tp 0"), HasSubstr("--tp: \"0\" is no group size"));
  EXPECT_THAT(refused("verify tiny-llama --tp -2"), HasSubstr("\"-2\" is no group size"));
  EXPECT_THAT(refused("verify tiny-llama --tp 1,2.5"), HasSubstr("\"2.5\" is no group size"));
  EXPECT_THAT(refused("verify tiny-llama --tp 2,4,2"), HasSubstr("tp=2 is given twice"));
  EXPECT_THAT(refused("verify tiny-llama --tp 2 --mesh tp=2"), HasSubstr("tp=2 is given twice"));
  EXPECT_THAT(refused("verify tiny-llama --mesh dp=2"),
              HasSubstr("the plan megatron has the axes tp"));
  EXPECT_THAT(refused("verify tiny-llama --mesh tp=x"), HasSubstr("\"x\" is no group size"));
  EXPECT_THAT(refused("verify tiny-llama --tp 2,9"), HasSubstr("the largest size that works is 8"));
  EXPECT_THAT(refused("verify tiny-llama-bias --tp 6"),
              HasSubstr("the largest size that works is 5"));
  EXPECT_THAT(refused("cost llama-3-8b --tp 0"), HasSubstr("\"0\" is no group size"));
  EXPECT_THAT(refused("cost llama-3-8b --tp 64"), HasSubstr("the largest size that works is 32"));
  EXPECT_THAT(refused("faults --tp 0"), HasSubstr("--tp: \"0\" is no group size"));
  const TempFolder folder;
  const std::string four = folder.write("four.json", R"({"name": "p", "mesh": ["a", "b", "c", "d"]})").string();
  EXPECT_THAT(refused("lint tiny-llama --plan " + four + " --mesh a=1024,b=1024,c=1024,d=1024"),
              HasSubstr("more than 1024 ranks"));
}

// A list of nothing is no run that passes.
TEST(BadInput, EmptyLists) {
  for (const char* command : {"verify tiny-llama", "lint tiny-llama", "prove tiny-llama", "cost tiny-llama",
                              "plan explain tiny-llama", "faults"}) {
    EXPECT_THAT(refused(std::string(command) + " --tp ,"), HasSubstr("--tp: no group size given")) << command;
  }
  EXPECT_THAT(refused("cost tiny-llama --link ,"), HasSubstr("--link: no link given"));
  EXPECT_THAT(refused("faults --model ,"), HasSubstr("--model: no name given"));
  EXPECT_THAT(refused("faults --fault ,"), HasSubstr("--fault: no name given"));
}

TEST(BadInput, AFileThatFailsWhereItIsRead) {
  EXPECT_THAT(refused("lint tiny-llama --plan /proc/self/mem"), HasSubstr("the file can't be read"));
}

TEST(BadInput, Words) {
  EXPECT_THAT(refused("verify tiny-llama --dtype f8"), HasSubstr("use f64, f32, bf16 or fp16"));
  EXPECT_THAT(refused("verify tiny-llama --dtype bf16,bf16"), HasSubstr("bf16 is given twice"));
  EXPECT_THAT(refused("verify tiny-llama --wire int4"), HasSubstr("use f64, f32, bf16 or fp16"));
  EXPECT_THAT(refused("verify tiny-llama --phase warmup"),
              HasSubstr("use prefill, decode or both"));
  EXPECT_THAT(refused("verify tiny-llama --phase decode,decode"), HasSubstr("given twice"));
  EXPECT_THAT(refused("verify tiny-llama --order zigzag"), HasSubstr("use ring, tree"));
  EXPECT_THAT(refused("verify tiny-llama --hop f16"), HasSubstr("use wire or f32"));
}

TEST(BadInput, Numbers) {
  EXPECT_THAT(refused("verify tiny-llama --tokens 0"), HasSubstr("--tokens"));
  EXPECT_THAT(refused("verify tiny-llama --tokens 99999999999999999999999"), HasSubstr("--tokens"));
  EXPECT_THAT(refused("verify tiny-llama --batch 0"), HasSubstr("--batch"));
  EXPECT_THAT(refused("verify tiny-llama --chunk -1"), HasSubstr("--chunk"));
  EXPECT_THAT(refused("verify tiny-llama --lengths 3,0"),
              HasSubstr("\"0\" is no number of tokens"));
  EXPECT_THAT(refused("verify tiny-llama --layers 4"), HasSubstr("has 3 layers"));
  EXPECT_THAT(refused("verify tiny-gpt2 --tokens 41"), HasSubstr("40 learned positions"));
  EXPECT_THAT(refused("cost llama-3-8b --seq 0"), HasSubstr("--seq"));
}

TEST(BadInput, OneTokenHasNothingToDecode) {
  EXPECT_THAT(refused("verify tiny-llama --tp 2 --tokens 1"),
              HasSubstr("no sequence has a token left to decode"));
  EXPECT_EQ(
      run_program_with("verify tiny-llama --tp 2 --tokens 1 --phase prefill --dtype f32").exit_code, 0);
}

TEST(BadInput, TokensOutsideTheVocabulary) {
  const TempFolder folder;
  const std::string ids = folder.write("ids.txt", "5 6 7\n8 320 9\n").string();
  EXPECT_THAT(refused("verify tiny-llama --ids " + ids),
              HasSubstr("sequence 1, token 1: id 320 is outside the vocabulary [0, 320)"));
  const std::string words = folder.write("words.txt", "5 six\n").string();
  EXPECT_THAT(refused("verify tiny-llama --ids " + words),
              HasSubstr("words.txt:1: \"six\" is no token id"));
  const std::string empty = folder.write("empty.txt", "").string();
  EXPECT_THAT(refused("verify tiny-llama --ids " + empty), HasSubstr("holds no token ids"));
}

TEST(BadInput, ModelWithoutWeights) {
  for (const std::string model :
       {"llama-3-8b", "fixtures/configs/llama-3-8b", "fixtures/configs/gpt2/config.json"}) {
    EXPECT_THAT(refused("verify " + model), AllOf(HasSubstr("config.json"), HasSubstr("--random")));
  }
  const TempFolder empty;
  EXPECT_THAT(refused("verify " + empty.path().string()),
              HasSubstr("neither config.json nor a .gguf file"));
}

TEST(BadInput, NanInTheWeights) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const SpoiltModel model;
    model.change_weights([&](std::map<std::string, HostTensor>& tensors) {
      HostTensor& tensor = tensors.at("model.layers.1.mlp.up_proj.weight");
      std::vector<double> values = tensor.to_f64();
      values[100] = value;
      tensor = round_to(tensor.dtype(), tensor.shape(), values);
    });
    EXPECT_THAT(refused(model.verify()), HasSubstr("layers.1.mlp.up_proj.weight"));
  }
}

TEST(BadInput, TruncatedWeights) {
  const SpoiltModel model;
  const std::string whole = read_all(model.weights());
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, std::size_t{8}, std::size_t{200},
                                   whole.size() / 2, whole.size() - 1}) {
    std::ofstream(model.weights(), std::ios::binary | std::ios::trunc) << whole.substr(0, length);
    EXPECT_THAT(refused(model.verify()), HasSubstr("model.safetensors"));
  }
  std::ofstream(model.weights(), std::ios::binary | std::ios::trunc) << whole << "x";
  EXPECT_THAT(refused(model.verify()), HasSubstr("model.safetensors"));
}

// Every bit of the header's first bytes and a sample of the rest: refused or, where the name of nothing changed, run.
TEST(BadInput, FlippedHeaderNeverCrashes) {
  const SpoiltModel model;
  const std::string whole = read_all(model.weights());
  for (std::size_t at = 0; at < 2200; at += at < 8 ? 1 : 97) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    std::ofstream(model.weights(), std::ios::binary | std::ios::trunc) << flipped;
    const ProgramResult result = run_program_with(model.verify());
    EXPECT_FALSE(result.crashed) << at;
    EXPECT_NE(result.exit_code, 3) << at << ": " << result.err;
    EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 0)
        << at << ": " << result.exit_code << result.err;
  }
}

TEST(BadInput, TensorsThatDoNotFit) {
  SpoiltModel missing;
  missing.change_weights(
      [](auto& tensors) { tensors.erase("model.layers.2.self_attn.o_proj.weight"); });
  EXPECT_THAT(refused(missing.verify()), HasSubstr("layers.2.self_attn.o_proj.weight"));
  SpoiltModel surplus;
  surplus.change_weights([](auto& tensors) {
    tensors.emplace("model.layers.3.mlp.up_proj.weight", tensors.begin()->second);
  });
  EXPECT_THAT(refused(surplus.verify()), HasSubstr("layers.3.mlp.up_proj.weight"));
  SpoiltModel misshapen;
  misshapen.change_weights([](auto& tensors) {
    HostTensor& tensor = tensors.at("model.norm.weight");
    tensor = round_to(tensor.dtype(), {47}, std::vector<double>(47, 1.5));
  });
  EXPECT_THAT(refused(misshapen.verify()), HasSubstr("norm.weight"));
}

TEST(BadInput, Configs) {
  struct Wrong {
    std::string what, by, says;
  };
  for (const Wrong& wrong : std::vector<Wrong>{
           {"\"hidden_size\": 48,", "", "hidden_size"},
           {"\"hidden_size\": 48", "\"hidden_size\": \"48\"", "hidden_size"},
           {"\"num_hidden_layers\": 3", "\"num_hidden_layers\": -3", "num_hidden_layers"},
           {"\"model_type\": \"llama\"", "\"model_type\": \"lama\"", "lama"},
           {"\"use_cache\": true", "\"use_cahce\": true", "use_cahce"},
           {"\"vocab_size\": 320", "\"vocab_size\": 320,,", "config.json:"},
           {"\"num_key_value_heads\": 4", "\"num_key_value_heads\": 3", "num_key_value_heads"}}) {
    const SpoiltModel model;
    model.replace_in_config(wrong.what, wrong.by);
    EXPECT_THAT(refused(model.verify()), AllOf(HasSubstr("config.json"), HasSubstr(wrong.says)));
  }
}

// A config that is sound by itself, beside weights of another model.
TEST(BadInput, ConfigOfAnotherModel) {
  const SpoiltModel model;
  model.replace_in_config("\"hidden_size\": 48", "\"hidden_size\": 49");
  EXPECT_THAT(refused(model.verify()), AllOf(HasSubstr("embed_tokens.weight"),
                                             HasSubstr("[320, 48]"), HasSubstr("[320, 49]")));
}

/// A plan file with some text.
std::string with_plan(const TempFolder& folder, const std::string& text) {
  return "verify tiny-llama --tp 2 --plan " + folder.write("plan.json", text).string();
}

TEST(BadInput, Plans) {
  const TempFolder folder;
  const auto plan = [](const std::string& weights, const std::string& collectives) {
    return "{ \"name\": \"p\", \"mesh\": [\"tp\"],\n  \"weights\": {" + weights +
           "},\n  \"collectives\": {" + collectives + "} }";
  };
  EXPECT_THAT(refused(with_plan(folder, plan(R"p("embed_tokens": {"tp": "shrd(vocab)"})p", ""))),
              AllOf(HasSubstr("plan.json:2:"), HasSubstr("shrd"), HasSubstr("shard")));
  EXPECT_THAT(refused(with_plan(folder, plan("", R"p("embed_tokens.out": "all_reduc(sum, tp)")p"))),
              AllOf(HasSubstr("plan.json:3:"), HasSubstr("all_reduc"), HasSubstr("all_reduce")));
  EXPECT_THAT(
      refused(with_plan(folder,
                        plan(R"p("layers.*.self_atn.q_proj": {"tp": "shard(out by head)"})p", ""))),
      AllOf(HasSubstr("layers.*.self_atn.q_proj"), HasSubstr("layers.")));
  EXPECT_THAT(
      refused(with_plan(folder, plan("", R"p("layers.*.mlp.down.out": "all_reduce(sum, tp)")p"))),
      HasSubstr("layers.*.mlp.down"));
  EXPECT_THAT(refused(with_plan(
                  folder, plan(R"p("lm_*": {"tp": "shard(vocab)"}, "lm_head": {"tp": "shard(vocab)"})p",
                               ""))),
              HasSubstr("lm_head"));
  EXPECT_THAT(refused(with_plan(folder, plan(R"p("lm_head": {"dp": "shard(vocab)"})p", ""))),
              HasSubstr("dp"));
  EXPECT_THAT(refused(with_plan(folder, "{ \"name\": \"p\", ")), HasSubstr("plan.json:1:"));
  EXPECT_THAT(refused(with_plan(folder, "[]")), HasSubstr("plan.json"));
  EXPECT_THAT(refused(with_plan(folder, "")), HasSubstr("plan.json"));
  EXPECT_THAT(
      refused(with_plan(folder, R"({"name": "p", "mesh": ["tp"], "weigths": {}, "collectives": {}})")),
      HasSubstr("weigths"));
}

// ---- no output file is left ----

TEST(BadInput, NoReportIsLeft) {
  const TempFolder folder;
  const std::string json = (folder.path() / "report.json").string();
  for (const std::string arguments :
       {"verify tiny-llama --tp 0", "verify tiny-llama --tp 9", "verify tiny-llama --tokens 1",
        "verify llama-3-8b", "compare tiny-llama --golden nowhere",
        "compare tiny-llama --candidate nowhere", "cost llama-3-8b --tp 0", "cost nobody"}) {
    refused(arguments + " --json " + json);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << arguments;
  }
}

TEST(BadInput, ReportThatCanNotBeWritten) {
  EXPECT_THAT(refused("verify tiny-llama --json /nowhere/at/all.json"),
              HasSubstr("the folder /nowhere/at doesn't exist"));
  EXPECT_THAT(refused("verify tiny-llama --json /tmp"), HasSubstr("is a folder; name a file"));
}

TEST(BadInput, NoDumpIsLeft) {
  const TempFolder folder;
  const std::string dump = (folder.path() / "dump").string();
  refused("verify tiny-llama --tp 9 --dump " + dump);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace shardcheck::testing
