// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/planted_plans.hpp"

namespace shardcheck::testing {
namespace {

Json tp(const Json& cut) { return {{"tp", cut}}; }

/// Rows of a module are wrong when the plan has been resolved, as a loader's or a planner's slip makes them.
LintOptions edited(std::function<void(ResolvedPlan&)> edit) { return {std::move(edit), nullptr}; }

}  // namespace

std::vector<Planted> planted_in_every_family() {
  std::vector<Planted> all;
  for (const FamilyNames& f : kFamilies) {
    const auto plant = [&](const std::string& name, std::function<void(Json&, Json&)> edit,
                           std::vector<std::string> expected) {
      std::string model = f.model;
      std::replace(model.begin(), model.end(), '-', '_');
      all.push_back(
          {name + "_in_" + model, f.model, "megatron", f.family, {2}, std::move(edit), std::move(expected), {}});
    };
    plant("no_sum_after_embedding", [f](Json&, Json& at) { at.erase(f.embed + ".out"); },
          {f.embed_rule + " " + f.embed_tap});
    plant("no_sum_after_attention", [f](Json&, Json& at) { at.erase(f.o + ".out"); },
          {f.o_rule + " " + f.o});
    plant("no_sum_after_mlp", [f](Json&, Json& at) { at.erase(f.down + ".out"); },
          {f.down_rule + " " + f.down});
    plant("no_gather_of_logits", [](Json&, Json& at) { at.erase("lm_head.out"); },
          {"output_not_replicated lm_head"});
    plant("o_is_column_parallel", [f](Json& weights, Json&) { weights[f.o] = tp("shard(out)"); },
          {"sum_over_shard " + f.attn});
    plant("o_is_column_parallel_without_sum",
          [f](Json& weights, Json& at) {
            weights[f.o] = tp("shard(out)");
            at.erase(f.o + ".out");
          },
          {"sum_over_shard " + f.attn});
    plant("down_is_whole", [f](Json& weights, Json&) { weights.erase(f.down); },
          {"sum_over_shard " + f.act});
    plant("up_is_whole", [f](Json& weights, Json&) { weights.erase(f.up); },
          {"row_parallel_needs_shard " + f.act});
    plant("columns_overlap",
          [f](Json& weights, Json&) { weights[f.down] = tp(ranges_of_two("in", 50, 40, f.inner)); },
          {"ranges_overlap " + f.down});
    plant("columns_missing",
          [f](Json& weights, Json&) { weights[f.down] = tp(ranges_of_two("in", 40, 50, f.inner)); },
          {"ranges_missing " + f.down});
    plant(
        "columns_outside",
        [f](Json& weights, Json&) { weights[f.down] = tp(ranges_of_two("in", 40, 40, f.inner + 1)); },
        {"ranges_outside " + f.down});
    plant("sum_of_a_gathered_value",
          [](Json&, Json& at) {
            at["lm_head.out"] = {"all_gather(vocab, tp)", "all_reduce(sum, tp)"};
          },
          {"collective_misplaced lm_head.reduced"});
    plant("broadcast_of_a_sum",
          [f](Json&, Json& at) {
            at[f.embed + ".out"] = {"all_reduce(sum, tp)", "broadcast(0, tp)"};
          },
          {"redundant_collective " + f.embed});
    plant("three_mistakes",
          [f](Json& weights, Json& at) {
            at.erase(f.embed + ".out");
            weights[f.down] = tp(ranges_of_two("in", 50, 40, f.inner));
            at.erase("lm_head.out");
          },
          {"ranges_overlap " + f.down, f.embed_rule + " " + f.embed_tap,
           "output_not_replicated lm_head"});
    plant("two_mistakes_and_a_waste",
          [f](Json&, Json& at) {
            at.erase(f.o + ".out");
            at.erase(f.down + ".out");
            at["lm_head.out"] = {"all_gather(vocab, tp)", "slice(vocab, tp)",
                                 "all_gather(vocab, tp)"};
          },
          {f.o_rule + " " + f.o, f.down_rule + " " + f.down,
           "redundant_collective lm_head.reduced.1"});
  }
  return all;
}

std::vector<Planted> planted_by_rule() {
  const std::string q = "layers.*.self_attn.q_proj", kv = "layers.*.self_attn.{k,v}_proj";
  const std::string o = "layers.*.self_attn.o_proj", down = "layers.*.mlp.down_proj";
  const std::string gate = "layers.*.mlp.gate_proj", up = "layers.*.mlp.up_proj";
  const auto none = [](Json&, Json&) {};
  return {
      // ---- heads ----
      {"q_cut_inside_a_head",
       "tiny-llama",
       "megatron",
       "llama",
       {3},
       [q](Json& weights, Json&) { weights[q] = tp("shard(out)"); },
       {"head_is_cut " + q},
       {}},
      {"q_cut_inside_a_head_of_qwen3",
       "tiny-qwen3",
       "megatron",
       "llama",
       {3},
       [q](Json& weights, Json&) { weights[q] = tp("shard(out by chunk)"); },
       {"head_is_cut " + q},
       {}},
      {"fused_rows_cut_inside_a_head",
       "tiny-gpt2",
       "megatron",
       "gpt2",
       {4},
       [](Json& weights, Json&) { weights["h.*.attn.c_attn"] = tp("shard(out)"); },
       {"head_is_cut h.*.attn.c_attn.q"},
       {}},
      {"kv_heads_of_the_neighbour",
       "tiny-llama",
       "megatron",
       "llama",
       {2},
       [kv](Json& weights, Json&) {
         weights[kv] = tp(Json{{"shard", "out"},
                               {"by", "kv_head"},
                               {"ranges", {{"2", Json::parse("[[[2,4]],[[0,2]]]")}}}});
       },
       {"kv_head_missing layers.*.self_attn.k_cache", "kv_head_missing layers.*.self_attn.v_cache"},
       {}},
      {"one_heads_norm_is_cut",
       "tiny-qwen3",
       "megatron",
       "llama",
       {2},
       [](Json& weights, Json&) { weights["layers.*.self_attn.q_norm"] = tp("shard(features)"); },
       {"head_parameter_is_cut layers.*.self_attn.q_norm"},
       {}},
      {"one_heads_norm_is_cut_by_kv_head",
       "tiny-qwen3",
       "megatron",
       "llama",
       {2},
       [](Json& weights, Json&) {
         weights["layers.*.self_attn.k_norm"] = tp("shard(features by kv_head)");
       },
       {"head_parameter_is_cut layers.*.self_attn.k_norm"},
       {}},
      {"all_heads_norm_is_whole",
       "tiny-olmo2",
       "megatron",
       "olmo2",
       {3},
       [](Json& weights, Json&) { weights.erase("layers.*.self_attn.k_norm"); },
       {"head_parameter_not_cut layers.*.self_attn.k_norm"},
       {}},
      {"all_heads_norm_cut_by_rows",
       "tiny-olmo2",
       "megatron",
       "olmo2",
       {2},
       [](Json& weights, Json&) { weights["layers.*.self_attn.q_norm"] = tp("shard(features)"); },
       {"head_parameter_not_cut layers.*.self_attn.q_norm"},
       {}},
      {"statistic_of_a_shard",
       "tiny-olmo2",
       "megatron",
       "olmo2",
       {3},
       [](Json&, Json& at) { at.erase("layers.*.self_attn.{q,k}_norm.stat"); },
       {"statistic_over_shard " + q, "statistic_over_shard layers.*.self_attn.k_proj"},
       {}},
      {"statistic_stays_partial",
       "tiny-olmo2",
       "megatron",
       "olmo2",
       {3},
       [](Json&, Json& at) { at["layers.*.self_attn.{q,k}_norm.stat"] = "all_reduce(max, tp)"; },
       {"collective_misplaced layers.*.self_attn.q_norm.stat.partial",
        "collective_misplaced layers.*.self_attn.k_norm.stat.partial"},
       {}},
      // ---- sections ----
      {"chunks_of_a_fused_tensor",
       "tiny-gpt2",
       "megatron",
       "gpt2",
       {2, 3},
       [](Json& weights, Json&) { weights["h.*.attn.c_attn"] = tp("shard(out by chunk)"); },
       {"section_is_cut h.*.attn.c_attn"},
       {}},
      {"chunks_of_qkv",
       "tiny-phi3",
       "megatron",
       "phi3",
       {2},
       [](Json& weights, Json&) {
         weights["layers.*.self_attn.qkv_proj"] = tp("shard(out by chunk)");
       },
       {"section_is_cut layers.*.self_attn.qkv_proj"},
       {}},
      {"chunks_of_gate_up",
       "tiny-phi3",
       "megatron",
       "phi3",
       {3},
       [](Json& weights, Json&) { weights["layers.*.mlp.gate_up_proj"] = tp("shard(out by chunk)"); },
       {"section_is_cut layers.*.mlp.gate_up_proj"},
       {}},
      {"rows_of_the_whole_fused_tensor",
       "tiny-phi3",
       "megatron",
       "phi3",
       {2},
       [](Json& weights, Json&) {
         weights["layers.*.mlp.gate_up_proj"] = tp(ranges_of_two("out", 100, 100, 170));
       },
       {"section_is_cut layers.*.mlp.gate_up_proj"},
       {}},
      {"borders_of_another_model",
       "tiny-phi3",
       "megatron",
       "phi3",
       {2},
       none,
       {"sections_misdeclared layers.*.self_attn.qkv_proj"},
       {nullptr,
        [](Program& program) {
          for (Module& module : program.modules) {
            if (module.role != ModuleRole::qkv) continue;
            module.sections[0].end -= 8;
            module.sections[1].begin -= 8;
          }
        }}},
      // ---- ranges, changed after the plan was read ----
      {"a_ranks_rows_are_lost",
       "tiny-llama",
       "megatron",
       "llama",
       {4},
       none,
       {"ranges_missing lm_head"},
       edited([](ResolvedPlan& plan) { plan.weights.at("lm_head").rows[2].clear(); })},
      {"a_border_is_one_off",
       "tiny-llama",
       "megatron",
       "llama",
       {2},
       none,
       {"ranges_missing layers.1.mlp.up_proj"},
       edited([](ResolvedPlan& plan) {
         plan.weights.at("layers.1.mlp.up_proj").rows[1][0].begin += 1;
       })},
      {"a_border_moved_in_both",
       "tiny-llama",
       "megatron",
       "llama",
       {2},
       none,
       {"ranges_differ layers.2.mlp.up_proj"},
       edited([](ResolvedPlan& plan) {
         ModulePlacement& up_proj = plan.weights.at("layers.2.mlp.up_proj");
         up_proj.rows[0][0].end += 1;
         up_proj.rows[1][0].begin += 1;
       })},
      {"overlap_declared_of_q",
       "tiny-llama",
       "megatron",
       "llama",
       {2},
       none,
       {"ranges_overlap layers.0.self_attn.q_proj"},
       edited([](ResolvedPlan& plan) {
         ModulePlacement& q_proj = plan.weights.at("layers.0.self_attn.q_proj");
         q_proj.rows[1][0].begin -= 8;
         q_proj.may_overlap = true;
       })},
      {"ranks_for_another_mesh",
       "tiny-llama",
       "megatron",
       "llama",
       {4},
       none,
       {"ranges_missing embed_tokens"},
       edited([](ResolvedPlan& plan) { plan.weights.at("embed_tokens").rows.pop_back(); })},
      {"replicas_with_other_rows",
       "tiny-llama",
       "tp2d",
       "llama",
       {2, 2},
       none,
       {"ranges_differ lm_head"},
       edited([](ResolvedPlan& plan) {
         plan.weights.at("lm_head").rows[1] = plan.weights.at("lm_head").rows[0];
       })},
      // ---- axes ----
      {"sum_over_the_wrong_axis",
       "tiny-llama",
       "tp2d",
       "llama",
       {2, 2},
       [o](Json&, Json& at) { at[o + ".out"] = "all_reduce(sum, tpx)"; },
       {"collective_misplaced " + o + ".partial"},
       {}},
      // ---- tokens ----
      {"tokens_cut_for_megatron",
       "tiny-llama",
       "megatron",
       "llama",
       {2},
       [](Json&, Json& at) {
         at["embed_tokens.out"] = {"all_reduce(sum, tp)", "slice(tokens, tp)"};
       },
       {"tokens_differ embed_tokens", "all_reduce_then_slice embed_tokens.reduced"},
       {}},
      {"whole_tokens_for_sequence_parallel",
       "tiny-llama",
       "megatron_sp",
       "llama",
       {2},
       [](Json&, Json& at) { at["embed_tokens.out"] = "all_reduce(sum, tp)"; },
       {"tokens_differ embed_tokens"},
       {}},
      {"whole_branch_for_sequence_parallel",
       "tiny-llama",
       "megatron_sp",
       "llama",
       {2},
       [o](Json&, Json& at) { at[o + ".out"] = "all_reduce(sum, tp)"; },
       {"tokens_differ " + o},
       {}},
      {"positions_of_all_tokens",
       "tiny-gpt2",
       "megatron_sp",
       "gpt2",
       {2},
       [](Json&, Json& at) { at.erase("wpe.out"); },
       {"tokens_differ wpe"},
       {}},
      {"no_gather_before_column_parallel",
       "tiny-llama",
       "megatron_sp",
       "llama",
       {2},
       [](Json&, Json& at) { at.erase("layers.*.mlp.{gate,up}_proj.in"); },
       {"tokens_into_column_parallel layers.*.post_attention_layernorm"},
       {}},
      {"partial_plus_cut_tokens",
       "tiny-llama",
       "megatron_sp",
       "llama",
       {2},
       [down](Json&, Json& at) { at.erase(down + ".out"); },
       {"partial_plus_replicated " + down},
       {}},
      {"tokens_in_attention",
       "tiny-llama",
       "replicated",
       "",
       {2},
       [q](Json&, Json& at) { at[q + ".out"] = "slice(tokens, tp)"; },
       {"tokens_into_attention layers.*.self_attn.q_rot"},
       {}},
      {"tokens_into_row_parallel",
       "tiny-llama",
       "replicated",
       "",
       {2},
       [down](Json& weights, Json& at) {
         weights[down] = tp("shard(in)");
         at[down + ".in"] = "slice(tokens, tp)";
         at[down + ".out"] = "all_reduce(sum, tp)";
       },
       {"tokens_into_row_parallel layers.*.mlp.down_proj.in"},
       {}},
      {"cache_of_other_sequences",
       "tiny-llama",
       "replicated",
       "",
       {2},
       [o](Json&, Json& at) {
         at["layers.*.input_layernorm.out"] = "slice(sequence, tp)";
         at[o + ".out"] = "all_gather(sequence, tp)";
       },
       {"cache_moves layers.*.self_attn.k_cache", "cache_moves layers.*.self_attn.v_cache"},
       edited([](ResolvedPlan& plan) { plan.points.at(Phase::decode).clear(); })},
      // ---- operands ----
      {"partial_into_row_parallel",
       "tiny-olmo2",
       "replicated",
       "",
       {2},
       [](Json& weights, Json& at) {
         weights["embed_tokens"] = tp("shard(vocab)");
         weights["layers.0.self_attn.q_proj"] = tp("shard(in)");
         at["layers.0.self_attn.q_proj.out"] = "all_reduce(sum, tp)";
       },
       {"partial_into_row_parallel embed_tokens", "row_parallel_needs_shard embed_tokens"},
       {}},
      {"only_gate_is_cut",
       "tiny-llama",
       "replicated",
       "",
       {2},
       [gate](Json& weights, Json&) { weights[gate] = tp("shard(out)"); },
       {"placements_differ " + gate},
       {}},
      {"gate_and_up_cut_apart",
       "tiny-llama",
       "megatron",
       "llama",
       {2},
       [gate, up](Json& weights, Json&) {
         weights.erase("layers.*.mlp.{gate,up}_proj");
         weights[gate] = tp("shard(out)");
         weights[up] = tp(ranges_of_two("out", 60, 60, 136));
       },
       {"ranges_differ " + up},
       {}},
      // ---- waste ----
      {"gathered_and_sliced_again_later",
       "tiny-llama",
       "megatron",
       "llama",
       {2},
       [up, down](Json&, Json& at) {
         at["layers.*.mlp.{gate,up}_proj.out"] = "all_gather(features, tp)";
         at[down + ".in"] = "slice(features, tp)";
       },
       {"redundant_collective " + gate, "redundant_collective " + up},
       {}},
      {"sum_of_which_ranks_keep_a_part",
       "tiny-llama",
       "megatron_sp",
       "llama",
       {2},
       [o](Json&, Json& at) {
         at[o + ".out"] = {"all_reduce(sum, tp)", "slice(tokens, tp)"};
       },
       {"all_reduce_then_slice " + o + ".reduced"},
       {}},
  };
}

Plan planted_plan(const Planted& planted) {
  Json plan = Json::parse(read_text(find_shipped("plans", planted.plan)), nullptr, true, true);
  Json& section = planted.family.empty() ? plan : plan["families"][planted.family];
  planted.edit(section["weights"], section["collectives"]);
  return parse_plan(plan.dump(), "planted.json");
}

Mesh planted_mesh(const Planted& planted) {
  const Plan plan = load_plan(planted.plan);
  Mesh mesh;
  for (std::size_t i = 0; i < plan.mesh.size(); ++i)
    mesh.axes.push_back({plan.mesh[i], planted.sizes[i]});
  return mesh;
}

std::vector<std::string> rules_and_taps(const MeshLint& mesh) {
  std::vector<std::string> all;
  for (const LintFinding& entry : mesh.findings)
    all.push_back(entry.finding.rule + " " + entry.finding.tap);
  return all;
}

}  // namespace shardcheck::testing
