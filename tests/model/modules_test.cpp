// SPDX-License-Identifier: Apache-2.0
#include "model/modules.hpp"

#include <gtest/gtest.h>

#include <set>

namespace shardcheck {
namespace {

constexpr std::string_view kLlama = R"({"model_type": "llama", "hidden_size": 20, "intermediate_size": 28,
  "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "vocab_size": 31,
  "attention_bias": true, "tie_word_embeddings": true})";

constexpr std::string_view kGpt2 = R"({"model_type": "gpt2", "n_embd": 12, "n_inner": 17, "n_layer": 2, "n_head": 3,
  "vocab_size": 31, "n_positions": 9})";

std::vector<std::string> paths(const std::vector<Module>& all) {
  std::vector<std::string> result;
  for (const Module& module : all) result.push_back(module.path);
  return result;
}

TEST(Modules, OfALlama) {
  const Config config = parse_config(kLlama, "c.json");
  const std::vector<Module> all = modules(config);
  const std::vector<std::string> expected = {"embed_tokens",
                                             "layers.0.input_layernorm",
                                             "layers.0.self_attn.q_proj",
                                             "layers.0.self_attn.k_proj",
                                             "layers.0.self_attn.v_proj",
                                             "layers.0.self_attn.o_proj",
                                             "layers.0.post_attention_layernorm",
                                             "layers.0.mlp.gate_proj",
                                             "layers.0.mlp.up_proj",
                                             "layers.0.mlp.down_proj",
                                             "layers.1.input_layernorm",
                                             "layers.1.self_attn.q_proj",
                                             "layers.1.self_attn.k_proj",
                                             "layers.1.self_attn.v_proj",
                                             "layers.1.self_attn.o_proj",
                                             "layers.1.post_attention_layernorm",
                                             "layers.1.mlp.gate_proj",
                                             "layers.1.mlp.up_proj",
                                             "layers.1.mlp.down_proj",
                                             "norm",
                                             "lm_head"};
  EXPECT_EQ(paths(all), expected);
  EXPECT_EQ(all[2].out, 30);
  EXPECT_EQ(all[2].in, 20);
  EXPECT_EQ(all[3].out, 6);
  EXPECT_EQ(all[5].in, 30);
  EXPECT_TRUE(all[2].has_bias && all[5].has_bias);
  EXPECT_FALSE(all[9].has_bias);
  EXPECT_EQ(all[9].in, 28);
  EXPECT_EQ(all[9].layer, 0);
  EXPECT_EQ(all.back().tied_to, "embed_tokens");
  EXPECT_EQ(block_paths(config, 1).attention, "layers.1.self_attn");
}

TEST(Modules, OfAGpt2) {
  const Config config = parse_config(kGpt2, "c.json");
  const std::vector<Module> all = modules(config);
  const std::vector<std::string> expected = {"wte",
                                             "wpe",
                                             "h.0.ln_1",
                                             "h.0.attn.c_attn",
                                             "h.0.attn.c_proj",
                                             "h.0.ln_2",
                                             "h.0.mlp.c_fc",
                                             "h.0.mlp.c_proj",
                                             "h.1.ln_1",
                                             "h.1.attn.c_attn",
                                             "h.1.attn.c_proj",
                                             "h.1.ln_2",
                                             "h.1.mlp.c_fc",
                                             "h.1.mlp.c_proj",
                                             "ln_f",
                                             "lm_head"};
  EXPECT_EQ(paths(all), expected);
  const Module& qkv = all[3];
  EXPECT_EQ(qkv.out, 36);
  EXPECT_TRUE(qkv.stored_transposed && qkv.has_bias);
  ASSERT_EQ(qkv.sections.size(), 3u);
  std::int64_t at = 0;
  for (const Section& section : qkv.sections) {
    EXPECT_EQ(section.begin, at);
    at = section.end;
  }
  EXPECT_EQ(at, qkv.out);
  EXPECT_EQ(qkv.sections[1].role, ModuleRole::k);
  EXPECT_EQ(all[7].in, 17);
  EXPECT_EQ(all[1].out, 9);
  EXPECT_TRUE(all[14].has_bias);
  EXPECT_EQ(all.back().tied_to, "wte");
  EXPECT_FALSE(all.back().stored_transposed);
  EXPECT_EQ(block_paths(config, 0).mlp, "h.0.mlp");
}

// qwen3's norms are of one head, olmo2's of all heads; olmo2 has no norm before its branches.
TEST(Modules, OfAQwen3AndAnOlmo2) {
  const auto text = [](const std::string& model_type) {
    return R"({"model_type": ")" + model_type + R"(", "hidden_size": 20, "intermediate_size": 28,
      "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 31,
      "attention_bias": true})";
  };
  const std::vector<Module> qwen3 = modules(parse_config(text("qwen3"), "c.json"));
  EXPECT_EQ(paths(qwen3), (std::vector<std::string>{
                              "embed_tokens", "layers.0.input_layernorm",
                              "layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj",
                              "layers.0.self_attn.v_proj", "layers.0.self_attn.q_norm",
                              "layers.0.self_attn.k_norm", "layers.0.self_attn.o_proj",
                              "layers.0.post_attention_layernorm", "layers.0.mlp.gate_proj",
                              "layers.0.mlp.up_proj", "layers.0.mlp.down_proj", "norm", "lm_head"}));
  EXPECT_EQ(qwen3[2].out, 24);
  EXPECT_EQ(qwen3[5].role, ModuleRole::q_norm);
  EXPECT_EQ(qwen3[6].role, ModuleRole::k_norm);
  EXPECT_EQ(qwen3[5].out, 4);
  EXPECT_EQ(qwen3[6].out, 4);
  EXPECT_TRUE(qwen3[2].has_bias && qwen3[7].has_bias);
  EXPECT_FALSE(qwen3[5].has_bias || qwen3[9].has_bias);

  const std::vector<Module> olmo2 = modules(parse_config(text("olmo2"), "c.json"));
  EXPECT_EQ(
      paths(olmo2),
      (std::vector<std::string>{
          "embed_tokens", "layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj",
          "layers.0.self_attn.v_proj", "layers.0.self_attn.q_norm", "layers.0.self_attn.k_norm",
          "layers.0.self_attn.o_proj", "layers.0.post_attention_layernorm",
          "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj", "layers.0.mlp.down_proj",
          "layers.0.post_feedforward_layernorm", "norm", "lm_head"}));
  EXPECT_EQ(olmo2[4].out, 24);
  EXPECT_EQ(olmo2[5].out, 8);
  EXPECT_EQ(olmo2[7].role, ModuleRole::attention_post_norm);
  EXPECT_EQ(olmo2[7].out, 20);
  EXPECT_EQ(olmo2[11].role, ModuleRole::mlp_post_norm);
}

TEST(Modules, OfAPhi3) {
  const std::vector<Module> all = modules(parse_config(
      R"({"model_type": "phi3", "hidden_size": 24, "intermediate_size": 17, "num_hidden_layers": 1,
          "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 31})",
      "c.json"));
  EXPECT_EQ(paths(all),
            (std::vector<std::string>{
                "embed_tokens", "layers.0.input_layernorm", "layers.0.self_attn.qkv_proj",
                "layers.0.self_attn.o_proj", "layers.0.post_attention_layernorm",
                "layers.0.mlp.gate_up_proj", "layers.0.mlp.down_proj", "norm", "lm_head"}));
  const Module& qkv = all[2];
  EXPECT_EQ(qkv.out, 24 + 2 * 8);
  EXPECT_EQ(qkv.role, ModuleRole::qkv);
  ASSERT_EQ(qkv.sections.size(), 3u);
  EXPECT_EQ(qkv.sections[1].role, ModuleRole::k);
  EXPECT_EQ(qkv.sections[1].begin, 24);
  EXPECT_EQ(qkv.sections[2].begin, 32);
  EXPECT_EQ(qkv.sections[2].end, 40);
  const Module& gate_up = all[5];
  EXPECT_EQ(gate_up.out, 34);
  EXPECT_EQ(gate_up.role, ModuleRole::gate_up);
  ASSERT_EQ(gate_up.sections.size(), 2u);
  EXPECT_EQ(gate_up.sections[0].role, ModuleRole::gate);
  EXPECT_EQ(gate_up.sections[1].begin, 17);
  EXPECT_FALSE(qkv.has_bias || gate_up.has_bias || qkv.stored_transposed);
}

TEST(Names, OnePrefixMeansNothing) {
  EXPECT_EQ(strip_prefix("model.layers.0.mlp"), "layers.0.mlp");
  EXPECT_EQ(strip_prefix("transformer.h.0.mlp"), "h.0.mlp");
  EXPECT_EQ(strip_prefix("lm_head"), "lm_head");
  EXPECT_EQ(strip_prefix("model.model.norm"), "model.norm");
  EXPECT_EQ(strip_prefix("models.norm"), "models.norm");
}

TEST(Names, NearestIsTheOneWithFewestEdits) {
  const std::vector<std::string> names = {"layers.0.mlp.up_proj", "layers.0.mlp.down_proj", "norm"};
  EXPECT_EQ(nearest_name("layers.0.mlp.donw_proj", names), "layers.0.mlp.down_proj");
  EXPECT_EQ(nearest_name("nrm", names), "norm");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace shardcheck
