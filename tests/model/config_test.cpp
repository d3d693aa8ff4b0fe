// SPDX-License-Identifier: Apache-2.0
#include "model/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <set>

#include "model/modules.hpp"
#include "small_configs.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;

TEST(Config, ReadsALlama) {
  const Config config = parse(with(llama(), {{"head_dim", 10},
                                             {"attention_bias", true},
                                             {"tie_word_embeddings", true},
                                             {"max_position_embeddings", 77},
                                             {"torch_dtype", "bfloat16"}}));
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.family, Family::llama);
  EXPECT_EQ(config.head_dim, 10);
  EXPECT_EQ(config.q_size(), 60);
  EXPECT_EQ(config.kv_size(), 20);
  EXPECT_EQ(config.max_positions, 77);
  EXPECT_TRUE(config.qkv_bias && config.o_bias && config.tied_embeddings);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.checkpoint_dtype, DType::bf16);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.windows.size(), 3u);
}

TEST(Config, HasTransformersDefaults) {
  const Config llama_config = parse(
      without(without(llama(), "num_key_value_heads"), "rms_norm_eps"));
  EXPECT_EQ(llama_config.num_kv_heads, 6);
  EXPECT_EQ(llama_config.head_dim, 8);
  EXPECT_EQ(llama_config.norm_eps, 1e-6);
  EXPECT_EQ(llama_config.rope.theta, 10000.0);
  EXPECT_EQ(llama_config.rope.type, RopeConfig::Type::standard);
  EXPECT_FALSE(llama_config.tied_embeddings);
  EXPECT_EQ(llama_config.checkpoint_dtype, DType::f32);

  const Config gpt = parse(without(gpt2(), "n_positions"));
  EXPECT_EQ(gpt.intermediate_size, 160);
  EXPECT_EQ(gpt.max_positions, 1024);
  EXPECT_EQ(gpt.norm_eps, 1e-5);
  EXPECT_TRUE(gpt.tied_embeddings && gpt.qkv_bias && gpt.o_bias && gpt.mlp_bias);
  EXPECT_EQ(gpt.rope.type, RopeConfig::Type::none);
  EXPECT_EQ(parse(with(gpt2(), {{"n_inner", 50}})).intermediate_size, 50);
  EXPECT_EQ(parse(with(gpt2(), {{"n_inner", nullptr}})).intermediate_size, 160);
  EXPECT_FALSE(parse(with(gpt2(), {{"tie_word_embeddings", false}})).tied_embeddings);
}

TEST(Config, ReadsBothSpellingsOfRope) {
  const json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192},
                       {"rope_type", "llama3"}};
  const RopeConfig old_form = parse(with(llama(), {{"rope_theta", 500000.0}, {"rope_scaling", llama3}}))
                                  .rope;
  const RopeConfig new_form =
      parse(with(llama(), {{"rope_parameters", with(llama3, {{"rope_theta", 500000.0}})}})).rope;
  for (const RopeConfig& rope : {old_form, new_form}) {
    EXPECT_EQ(rope.type, RopeConfig::Type::llama3);
    EXPECT_EQ(rope.theta, 500000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.high_freq_factor, 4.0);
    EXPECT_EQ(rope.original_max_positions, 8192.0);
  }
  const RopeConfig linear =
      parse(with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}})).rope;
  EXPECT_EQ(linear.type, RopeConfig::Type::linear);
  EXPECT_EQ(linear.factor, 2.0);
  const json plain = {{"rope_type", "default"}, {"rope_theta", 7.5}};
  EXPECT_EQ(parse(with(llama(), {{"rope_parameters", plain}})).rope.theta, 7.5);
  EXPECT_EQ(parse(with(llama(), {{"rope_parameters", {{"rope_theta", 9}}}})).rope.type,
            RopeConfig::Type::standard);
  EXPECT_EQ(parse(with(llama(), {{"rope_scaling", nullptr}})).rope.type, RopeConfig::Type::standard);
}

TEST(Config, RefusesRopeThatIsNotBuilt) {
  EXPECT_THAT(error(with(llama(), {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}})),
              HasSubstr("\"rope_scaling.rope_type\" is \"yarn\""));
  EXPECT_THAT(error(with(llama(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}}})),
              HasSubstr("dynamic"));
  EXPECT_THAT(error(with(llama(), {{"rope_scaling", {{"factor", 4.0}}}})),
              HasSubstr("rope_scaling.rope_type"));
  EXPECT_THAT(error(with(llama(), {{"rope_scaling", {{"type", "linear"}}}})),
              HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(
      error(with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"mscale", 3}}}})),
      HasSubstr("--ignore-key rope_scaling.mscale"));
  EXPECT_THAT(error(with(llama(), {{"rope_scaling", "linear"}})), HasSubstr("object"));
  EXPECT_THAT(error(with(llama(), {{"rope_theta", 5.0}, {"rope_parameters", {{"rope_theta", 6.0}}}})),
              HasSubstr("remove one"));
  EXPECT_THAT(error(with(llama(), {{"rope_theta", 0}})), HasSubstr("above 0"));
  EXPECT_THAT(error(with(llama(), {{"partial_rotary_factor", 0.5}})),
              HasSubstr("partial_rotary_factor"));
  EXPECT_NO_THROW(parse(with(llama(), {{"partial_rotary_factor", 1}})));
  ConfigOptions options;
  options.ignored_keys = {"rope_scaling.mscale"};
  EXPECT_NO_THROW(parse(
      with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"mscale", 3}}}}), options));
}

TEST(Config, ReadsWindows) {
  const json mistral = with(llama(), {{"model_type", "mistral"}});
  EXPECT_EQ(parse(with(mistral, {{"sliding_window", 5}})).windows,
            (std::vector<std::optional<std::int64_t>>(3, 5)));
  EXPECT_EQ(parse(with(mistral, {{"sliding_window", nullptr}})).windows,
            (std::vector<std::optional<std::int64_t>>(3, std::nullopt)));
  EXPECT_EQ(parse(mistral).windows[2], 4096);
  EXPECT_THAT(error(with(mistral, {{"sliding_window", 0}})), HasSubstr("sliding_window"));

  EXPECT_EQ(parse(with(qwen2(), {{"sliding_window", 5}})).windows[2], std::nullopt);
  const json windowed = with(
      qwen2(), {{"sliding_window", 5}, {"use_sliding_window", true}, {"max_window_layers", 1}});
  EXPECT_EQ(parse(windowed).windows, (std::vector<std::optional<std::int64_t>>{std::nullopt, 5, 5}));
  const json typed = with(
      windowed, {{"layer_types", {"sliding_attention", "full_attention", "full_attention"}}});
  EXPECT_EQ(parse(typed).windows,
            (std::vector<std::optional<std::int64_t>>{5, std::nullopt, std::nullopt}));
  EXPECT_THAT(error(with(typed, {{"layer_types", {"full_attention"}}})),
              HasSubstr("num_hidden_layers = 3"));
  EXPECT_THAT(error(with(typed, {{"layer_types", {"full_attention", "full_attention", "chunked"}}})),
              HasSubstr("entry 2"));
  EXPECT_THAT(error(with(typed, {{"use_sliding_window", false}})), HasSubstr("entry 0"));
  EXPECT_THAT(error(with(llama(), {{"sliding_window", 5}})), HasSubstr("only null is supported"));
}

TEST(Config, Qwen2HasBiasesOnQkvOnly) {
  const Config config = parse(qwen2());
  EXPECT_EQ(error(without(qwen2(), "num_key_value_heads")).empty(), false);  // 32, which doesn't divide 6
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias || config.mlp_bias);
}

TEST(Config, RefusesByNameWhatIsNotListed) {
  const std::string message = error(with(llama(), {{"attention_multiplier", 0.5}}));
  EXPECT_THAT(message, HasSubstr("dir/tiny/config.json"));
  EXPECT_THAT(message, HasSubstr("attention_multiplier"));
  EXPECT_THAT(message, HasSubstr("--ignore-key attention_multiplier"));
  ConfigOptions options;
  options.ignored_keys = {"attention_multiplier"};
  EXPECT_NO_THROW(parse(with(llama(), {{"attention_multiplier", 0.5}}), options));
  EXPECT_THAT(error(with(llama(), {{"quantization_config", {{"bits", 4}}}})),
              HasSubstr("quantization_config"));
  EXPECT_NO_THROW(parse(with(llama(), {{"quantization_config", nullptr}})));
  EXPECT_THAT(error(with(gpt2(), {{"scale_attn_weights", false}})),
              HasSubstr("only true is supported"));
  EXPECT_THAT(error(with(gpt2(), {{"scale_attn_by_inverse_layer_idx", true}})),
              HasSubstr("scale_attn_by"));
  EXPECT_NO_THROW(parse(
      with(gpt2(), {{"scale_attn_weights", true}, {"scale_attn_by_inverse_layer_idx", false}})));
  EXPECT_THAT(error(with(gpt2(), {{"activation_function", "relu"}})), HasSubstr("gelu_new"));
  EXPECT_NO_THROW(parse(with(gpt2(), {{"activation_function", "gelu_pytorch_tanh"}})));
  EXPECT_THAT(error(with(llama(), {{"hidden_act", "gelu"}})), HasSubstr("silu"));
  EXPECT_THAT(error(with(llama(), {{"model_type", "gemma"}})),
              HasSubstr("llama, mistral, qwen2, qwen3, olmo2, phi3, gpt2"));
}

TEST(Config, EveryKeyIsInOneList) {
  for (const char* model_type : {"llama", "mistral", "qwen2", "qwen3", "olmo2", "phi3", "gpt2"}) {
    const ConfigKeys keys = config_keys(model_type);
    std::set<std::string> seen;
    for (const auto* list : {&keys.used, &keys.without_effect, &keys.refused}) {
      EXPECT_FALSE(list->empty());
      for (const std::string& key : *list)
        EXPECT_TRUE(seen.insert(key).second) << model_type << " " << key;
    }
  }
  EXPECT_THROW(config_keys("gemma"), InputError);
}

TEST(Config, KeysWithoutEffectHaveNone) {
  const ConfigKeys keys = config_keys("llama");
  json config = llama();
  for (const std::string& key : keys.without_effect) config[key] = "anything";
  EXPECT_EQ(parse(config).hidden_size, 48);
}

TEST(Config, NeedsEveryShape) {
  for (const char* key : {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size"}) {
    EXPECT_THAT(error(without(llama(), key)), HasSubstr(key));
  }
  for (const char* key : {"n_embd", "n_layer", "n_head", "vocab_size"}) {
    EXPECT_THAT(error(without(gpt2(), key)), HasSubstr(std::string("\"") + key + "\" is missing"));
  }
}

TEST(Config, RefusesWrongTypesAndRanges) {
  const std::vector<json> wrong = {"48",
                                   4.5,
                                   -1,
                                   0,
                                   1e300,
                                   json::array({1}),
                                   json::object(),
                                   true,
                                   18446744073709551615ULL,
                                   std::int64_t{1} << 62};
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"}) {
    for (const json& value : wrong) {
      EXPECT_THAT(error(with(llama(), {{key, value}})), HasSubstr(key)) << value.dump();
    }
  }
  for (const json& value : {json("x"), json(0), json(-1e-5), json(true), json::array(), json(2.0)}) {
    EXPECT_THAT(error(with(llama(), {{"rms_norm_eps", value}})), HasSubstr("rms_norm_eps"));
  }
  for (const char* key : {"attention_bias", "mlp_bias", "tie_word_embeddings"}) {
    EXPECT_THAT(error(with(llama(), {{key, 1}})), HasSubstr("true or false"));
  }
  EXPECT_THAT(error(with(llama(), {{"torch_dtype", "int8"}})), HasSubstr("bfloat16"));
  EXPECT_THAT(error(with(llama(), {{"model_type", 5}})), HasSubstr("string"));
  EXPECT_THAT(error(with(llama(), {{"num_key_value_heads", 4}})), HasSubstr("must divide"));
  EXPECT_THAT(error(with(llama(), {{"hidden_size", 50}})),
              HasSubstr("multiple of num_attention_heads = 6"));
  EXPECT_THAT(error(with(llama(), {{"head_dim", 7}})), HasSubstr("even"));
  EXPECT_THAT(error(with(gpt2(), {{"n_head", 7}})), HasSubstr("multiple of n_head"));
  EXPECT_NO_THROW(parse(with(gpt2(), {{"n_embd", 35}})));  // an odd head is legal without rotary embedding
}

TEST(Config, CutsTheDepth) {
  ConfigOptions options;
  options.num_layers = 2;
  const Config config = parse(llama(), options);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.windows.size(), 2u);
  for (const std::int64_t bad : {0, -1, 4}) {
    options.num_layers = bad;
    EXPECT_THAT(error(llama(), options), HasSubstr("--layers"));
  }
}

TEST(Config, MalformedJsonNamesLineAndColumn) {
  const auto message = [](std::string_view text) {
    return input_error([&] { parse_config(text, "c.json"); });
  };
  EXPECT_THAT(message("{\n  \"a\": 1,\n  \"b\": x}"), HasSubstr("c.json:3:8"));
  EXPECT_THAT(message(""), HasSubstr("c.json:1:1"));
  EXPECT_THAT(message("[1, 2]"), HasSubstr("JSON object"));
  EXPECT_THAT(message("{\"rms_norm_eps\": NaN}"), HasSubstr("c.json:1:"));
  EXPECT_THAT(message("{\"rms_norm_eps\": 1e999}"), HasSubstr("out of"));
  EXPECT_THAT(message("{\"a\": 1, \"a\": 2}"), HasSubstr("twice"));
  EXPECT_THAT(message("{\"a\": \"\xff\"}"), HasSubstr("c.json:1:"));
}

// Every prefix and thousands of one-byte changes of a real config: a Config or one InputError.
TEST(Config, DamagedTextNeverCrashes) {
  std::ifstream stream(SHARDCHECK_SOURCE_DIR "/fixtures/configs/llama-3.1-405b/config.json");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  ASSERT_FALSE(text.empty());
  std::size_t refused = 0;
  const auto attempt = [&](std::string_view changed) {
    try {
      modules(parse_config(changed, "c.json"));
    } catch (const InputError&) {
      ++refused;
    }
  };
  for (std::size_t length = 0; length < text.size(); ++length)
    attempt(std::string_view(text).substr(0, length));
  EXPECT_GE(refused, text.size() - 2);  // the last byte is a newline
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char byte : {'\0', '9', '-', '"', '}', static_cast<char>(text[i] ^ 0x80),
                            static_cast<char>(text[i] ^ 1)}) {
      std::string changed = text;
      changed[i] = byte;
      attempt(changed);
    }
  }
  EXPECT_GT(refused, 2 * text.size());
}

TEST(Config, ShippedOnesAreThePublicValues) {
  const auto read = [](const std::string& name) {
    return read_config(SHARDCHECK_SOURCE_DIR "/fixtures/configs/" + name + "/config.json");
  };
  const auto parameters = [&](const std::string& name) {
    double count = 0;
    for (const Module& module : modules(read(name))) {
      if (!module.tied_to)
        count += static_cast<double>(module.out) * static_cast<double>(module.in);
      if (module.has_bias) count += static_cast<double>(module.out);
    }
    return count;
  };
  // The counts that the models' publishers (or their checkpoints) give.
  EXPECT_EQ(parameters("llama-3-8b"), 8030261248.0);
  EXPECT_EQ(parameters("llama-3-70b"), 70553706496.0);
  EXPECT_EQ(parameters("llama-3.1-405b"), 405853388800.0);
  EXPECT_EQ(parameters("llama-2-7b"), 6738415616.0);
  EXPECT_EQ(parameters("mistral-7b"), 7241732096.0);
  EXPECT_EQ(parameters("qwen2-7b"), 7615616512.0);
  EXPECT_EQ(parameters("smollm2-135m"), 134515008.0);
  EXPECT_EQ(parameters("qwen3-8b"), 8190735360.0);
  EXPECT_EQ(parameters("olmo2-7b"), 7298617344.0);
  EXPECT_EQ(parameters("phi3-mini-4k"), 3821079552.0);
  EXPECT_EQ(parameters("gpt2"), 124439808.0);
  EXPECT_EQ(parameters("gpt2-medium"), 354823168.0);
  EXPECT_EQ(parameters("gpt2-large"), 774030080.0);
  EXPECT_EQ(parameters("gpt2-xl"), 1557611200.0);
  EXPECT_NEAR(parameters("gpt-3-175b"), 175e9, 0.5e9);
  EXPECT_EQ(read("mistral-7b").windows[31], 4096);
  EXPECT_EQ(read("phi3-mini-4k").windows[31], 2047);
  EXPECT_EQ(read("qwen3-8b").head_dim, 128);
  EXPECT_EQ(read("llama-3.1-405b").rope.type, RopeConfig::Type::llama3);
}

}  // namespace
}  // namespace shardcheck
