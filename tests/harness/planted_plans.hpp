// SPDX-License-Identifier: Apache-2.0
// Plans with planted mistakes, for every family: what is edited, and exactly what lint must then say.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "harness/lint.hpp"
#include "model/shipped.hpp"
#include "sharded/op.hpp"

namespace shardcheck::testing {

using Json = nlohmann::ordered_json;

/// One plan and its mistakes.
struct Planted {
  std::string name, model, plan;
  std::string family;  // section of the plan; empty: the plan has one for all
  std::vector<int> sizes;
  std::function<void(Json& weights, Json& points)> edit;
  std::vector<std::string> expected;  // "rule tap", layers folded, in the order of the report
  LintOptions options;
};
inline void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

/// Where a family has what, in megatron.json.
struct FamilyNames {
  std::string model, family;
  std::string embed, fused_or_q, o, up, down, attn, act;
  std::string embed_rule, o_rule, down_rule;  // what a partial value of these runs into
  std::string embed_tap;
  std::int64_t inner;
};
inline const std::vector<FamilyNames> kFamilies{
    {"tiny-llama", "llama", "embed_tokens", "layers.*.self_attn.q_proj",
     "layers.*.self_attn.o_proj", "layers.*.mlp.{gate,up}_proj", "layers.*.mlp.down_proj",
     "layers.*.self_attn.attn", "layers.*.mlp.act", "partial_into_nonlinear",
     "partial_plus_replicated", "partial_plus_replicated", "embed_tokens", 136},
    {"tiny-gpt2", "gpt2", "wte", "h.*.attn.c_attn", "h.*.attn.c_proj", "h.*.mlp.c_fc",
     "h.*.mlp.c_proj", "h.*.attn.attn", "h.*.mlp.act", "partial_plus_replicated", "bias_on_partial",
     "bias_on_partial", "wte", 156},
    {"tiny-qwen3", "llama", "embed_tokens", "layers.*.self_attn.q_proj",
     "layers.*.self_attn.o_proj", "layers.*.mlp.{gate,up}_proj", "layers.*.mlp.down_proj",
     "layers.*.self_attn.attn", "layers.*.mlp.act", "partial_into_nonlinear",
     "partial_plus_replicated", "partial_plus_replicated", "embed_tokens", 90},
    {"tiny-olmo2", "olmo2", "embed_tokens", "layers.*.self_attn.q_proj",
     "layers.*.self_attn.o_proj", "layers.*.mlp.{gate,up}_proj", "layers.*.mlp.down_proj",
     "layers.*.self_attn.attn", "layers.*.mlp.act", "partial_into_column_parallel",
     "partial_into_nonlinear", "partial_into_nonlinear", "embed_tokens", 93},
    {"tiny-phi3", "phi3", "embed_tokens", "layers.*.self_attn.qkv_proj",
     "layers.*.self_attn.o_proj", "layers.*.mlp.gate_up_proj", "layers.*.mlp.down_proj",
     "layers.*.self_attn.attn", "layers.*.mlp.act", "partial_into_nonlinear",
     "partial_plus_replicated", "partial_plus_replicated", "embed_tokens", 85}};

inline Json ranges_of_two(const std::string& dim, std::int64_t first_end, std::int64_t second_begin,
                          std::int64_t end) {
  return {{"shard", dim},
          {"ranges",
           {{"2", Json::array({Json::array({Json::array({0, first_end})}),
                               Json::array({Json::array({second_begin, end})})})}}}};
}

/// Mistakes that every family can make.
std::vector<Planted> planted_in_every_family();
/// Those of one family, one plan or one rule.
std::vector<Planted> planted_by_rule();

/// The plan of `planted`, edited.
Plan planted_plan(const Planted& planted);
Mesh planted_mesh(const Planted& planted);
/// "rule tap" of every finding.
std::vector<std::string> rules_and_taps(const MeshLint& mesh);

}  // namespace shardcheck::testing
