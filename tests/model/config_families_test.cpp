// SPDX-License-Identifier: Apache-2.0
// What qwen3, olmo2 and phi3 read otherwise than llama.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "small_configs.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;

TEST(Config, Qwen3HasAHeadDimOfItsOwn) {
  const json base = with(llama(), {{"model_type", "qwen3"}});
  const Config config = parse(base);
  EXPECT_EQ(config.family, Family::qwen3);
  EXPECT_EQ(config.head_dim, 128);  // never hidden / heads
  EXPECT_EQ(parse(with(base, {{"hidden_size", 50}})).head_dim, 128);
  EXPECT_EQ(parse(with(base, {{"head_dim", 6}})).q_size(), 36);
  EXPECT_FALSE(config.qkv_bias || config.o_bias);
  const Config biased = parse(with(base, {{"attention_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && !biased.mlp_bias);
  EXPECT_EQ(parse(with(base, {{"sliding_window", 5}})).windows[2], std::nullopt);
  EXPECT_EQ(
      parse(with(base, {{"sliding_window", 5}, {"use_sliding_window", true}, {"max_window_layers", 2}}))
          .windows,
      (std::vector<std::optional<std::int64_t>>{std::nullopt, std::nullopt, 5}));
}

// transformers fills an absent count with the class's own, and null with the number of q heads.
TEST(Config, KvHeadsThatAreNull) {
  for (const char* type : {"mistral", "qwen2", "qwen3", "olmo2", "phi3", "llama"}) {
    EXPECT_EQ(parse(with(llama(), {{"model_type", type}, {"num_key_value_heads", nullptr}})).num_kv_heads, 6)
        << type;
  }
  EXPECT_EQ(parse(with(without(llama(), "num_key_value_heads"),
                       {{"model_type", "qwen3"}, {"num_attention_heads", 64}}))
                .num_kv_heads,
            32);
}

TEST(Config, Olmo2) {
  const json base = with(without(without(llama(), "rms_norm_eps"), "num_key_value_heads"),
                         {{"model_type", "olmo2"}});
  const Config config = parse(base);
  EXPECT_EQ(config.family, Family::olmo2);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.num_kv_heads, 6);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_TRUE(parse(with(base, {{"attention_bias", true}})).o_bias);
  EXPECT_THAT(error(with(base, {{"clip_qkv", 8.0}})), HasSubstr("clip_qkv"));
  EXPECT_EQ(parse(with(base, {{"rope_scaling", {{"type", "linear"}, {"factor", 8}}}})).rope.type,
            RopeConfig::Type::linear);
}

TEST(Config, Phi3) {
  const json base = with(without(llama(), "rms_norm_eps"), {{"model_type", "phi3"}});
  const Config config = parse(base);
  EXPECT_EQ(config.family, Family::phi3);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.max_positions, 4096);
  EXPECT_EQ(config.windows[0], std::nullopt);
  EXPECT_EQ(parse(with(base, {{"sliding_window", 2047}})).windows[2], 2047);
  EXPECT_EQ(parse(with(base, {{"sliding_window", nullptr}})).windows[2], std::nullopt);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias);
  // Its checkpoints name their own copy of the code; biases would change the model.
  EXPECT_NO_THROW(parse(with(base, {{"auto_map", {{"AutoConfig", "configuration_phi3.Phi3Config"}}},
                                    {"attention_bias", false},
                                    {"original_max_position_embeddings", 4096}})));
  EXPECT_THAT(error(with(base, {{"attention_bias", true}})), HasSubstr("only false is supported"));
  EXPECT_THAT(error(with(base, {{"partial_rotary_factor", 0.75}})),
              HasSubstr("partial_rotary_factor"));
  EXPECT_NO_THROW(parse(with(base, {{"partial_rotary_factor", 1.0}})));
  const json longrope = {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {2.0}}};
  EXPECT_THAT(error(with(base, {{"rope_scaling", longrope}})), HasSubstr("longrope"));
  EXPECT_THAT(error(with(base, {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}})),
              HasSubstr("only default is supported"));
  EXPECT_NO_THROW(parse(with(
      base, {{"rope_parameters",
              {{"rope_type", "default"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 1.0}}}})));
  EXPECT_THAT(
      error(with(base, {{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}}})),
      HasSubstr("partial_rotary_factor"));
}

}  // namespace
}  // namespace shardcheck
