// SPDX-License-Identifier: Apache-2.0
// Kind F: head counts - kv heads that several ranks need, the map from q heads to kv heads, indivisible counts.
#include <algorithm>

#include "harness/faults/kinds.hpp"
#include "harness/faults/slices.hpp"
#include "harness/faults/tensors.hpp"

namespace shardcheck::faults {
namespace {

std::vector<std::string> kv_modules(const Program& program, Phase) {
  return module_paths(program, [](const Program& p, const Module& m) {
    return (m.role == ModuleRole::k || m.role == ModuleRole::v) && cut_by_rows(p, m);
  });
}

/// Ranks that hold one kv head load the head that `head(rank)` says, where several ranks share one.
std::optional<Planted> kv_head_by(const Program& program, const Spot& spot,
                                  const std::function<std::int64_t(int rank, std::int64_t kv)>& head) {
  const Module& module = *program.find_module(spot.place);
  const std::int64_t d = program.config.head_dim, kv = program.config.num_kv_heads;
  if (program.mesh.axes.size() > 1 || kv < 2 || program.mesh.ranks() <= kv) return std::nullopt;
  std::map<int, Ranges> rows;
  for (int rank = 0; rank < program.mesh.ranks(); ++rank) {
    if (total(rows_of(program, module, rank)) != d) continue;
    const std::int64_t at = head(rank, kv);
    rows[rank] = {{at * d, (at + 1) * d}};
  }
  return wrong_rows(program, spot, false, rows);
}

/// The attention of a module's block, and the cached keys that it reads: what a forced run takes as whole where a rank
/// lacks a kv head.
const Instruction* attention_of(const Program& program, Phase phase, const Module& module) {
  for (const Instruction& i : program.instructions.at(phase)) {
    if (is_op(i, "attention") && module.path.starts_with(i.module + ".")) return &i;
  }
  return nullptr;
}
WrongTap read_by_attention(const Program& program, Phase phase, const Module& module) {
  const Instruction* attention = attention_of(program, phase, module);
  if (attention == nullptr) return {};
  return {program.value(attention->inputs[1]).name, everyone(program)};
}

/// A norm over all heads that reads the module's output: it has its own part in what goes wrong.
bool has_norm_over_heads(const Program& program, Phase phase, const Module& module) {
  const Instruction* linear = at_site(program, phase, site_of(program, phase, module));
  const auto next = readers(program, phase, linear->outputs[0]);
  return !next.empty() && is_op(*next[0], "rms_statistic");
}

/// kv rows cut evenly, whatever q heads the rank has.
std::optional<Planted> kv_cut_evenly(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const std::int64_t d = program.config.head_dim;
  if (program.mesh.axes.size() > 1) return std::nullopt;
  const Partition even = Partition::balanced(module.out, program.mesh.ranks(), d);
  const std::vector<int> lacking = ranks_where(program, [&](int rank) {
    const Ranges needed = rows_of(program, module, rank);
    return total(locate(even.of(rank), needed)) < total(needed);
  });
  if (lacking.empty() || has_norm_over_heads(program, spot.phase, module)) return std::nullopt;
  Planted planted;
  planted.edit_plan = [path = module.path, even](ResolvedPlan& plan) {
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank)
      plan.weights[path].rows[static_cast<std::size_t>(rank)] = even.of(rank);
  };
  planted.first = read_by_attention(program, spot.phase, module);
  return planted;
}

/// The border between two ranks' q rows lies inside a head.
std::optional<Planted> head_cut_inside(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const int next = neighbour(program, spot.rank);
  if (program.mesh.axes.size() > 1 || next < spot.rank || program.config.head_dim < 2)
    return std::nullopt;
  const Ranges mine = rows_of(program, module, spot.rank), theirs = rows_of(program, module, next);
  if (mine.size() != 1 || theirs.size() != 1 || mine[0].end != theirs[0].begin) return std::nullopt;
  const std::int64_t by = program.config.head_dim / 2;
  Planted planted;
  planted.edit_plan = [path = module.path, rank = static_cast<std::size_t>(spot.rank),
                       next = static_cast<std::size_t>(next), by](ResolvedPlan& plan) {
    auto& rows = plan.weights[path].rows;
    rows[rank][0].end += by;
    rows[next][0].begin += by;
  };
  // The linear is right; what follows takes whole heads.
  const Instruction& linear = *at_site(program, spot.phase, site_of(program, spot.phase, module));
  const auto next_ops = readers(program, spot.phase, linear.outputs[0]);
  if (next_ops.empty()) return std::nullopt;
  planted.first = {next_ops[0]->site, {spot.rank, next}};
  if (is_op(*next_ops[0], "rms_statistic"))
    planted.differs = WrongTap{next_ops[0]->module, {spot.rank, next}};
  return planted;
}

/// q heads in pieces of ceil(n / P), o's columns as before: the last ranks have none, or fewer.
std::optional<Planted> heads_in_chunks(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  if (program.mesh.axes.size() > 1) return std::nullopt;
  const Partition chunks = Partition::chunked(module.out, program.mesh.ranks(),
                                              program.config.head_dim);
  const std::vector<int> other = ranks_where(program, [&](int rank) {
    return normalized(chunks.of(rank)) != normalized(rows_of(program, module, rank));
  });
  if (other.empty()) return std::nullopt;
  Planted planted;
  planted.edit_plan = [path = module.path, chunks](ResolvedPlan& plan) {
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank)
      plan.weights[path].rows[static_cast<std::size_t>(rank)] = chunks.of(rank);
  };
  const std::int64_t d = program.config.head_dim,
                     group = program.config.num_heads / program.config.num_kv_heads;
  const Instruction* attention = attention_of(program, spot.phase, module);
  if (attention == nullptr || has_norm_over_heads(program, spot.phase, module)) return std::nullopt;
  const Layout& keys = program.value(attention->inputs[1]).layout;
  const std::vector<int> lacking = ranks_where(program, [&](int rank) {
    for (const Range& range : chunks.of(rank)) {
      for (std::int64_t at = range.begin; at < range.end; at += d) {
        const std::int64_t kv = at / d / group;
        if (total(locate(keys.feature_ranges(rank), {{kv * d, (kv + 1) * d}})) < d) return true;
      }
    }
    return false;
  });
  // Legal where o reads whole rows and every rank has the kv heads of its q heads.
  const bool whole = std::none_of(program.modules.begin(), program.modules.end(), [&](const Module& m) {
    return m.role == ModuleRole::o && m.layer == module.layer && cut_by_columns(program, m);
  });
  if (lacking.empty() && whole) return std::nullopt;
  planted.first = lacking.empty() ? WrongTap{attention->site, other}
                                  : read_by_attention(program, spot.phase, module);
  return planted;
}

std::vector<std::string> attentions(const Program& program, Phase phase) {
  return sites(program, phase,
               [](const Program&, const Instruction& i) { return is_op(i, "attention"); });
}

std::int64_t local_heads(const Program& program, const Instruction& site, std::size_t input, int rank) {
  return program.value(site.inputs[input]).layout.local_features(rank) / program.config.head_dim;
}

/// Every q head attends to the kv head after its own.
std::optional<Planted> next_kv_head(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (local_heads(program, site, 1, spot.rank) < 2) return std::nullopt;
  return change_inputs(spot.place, {spot.rank},
                       [d = program.config.head_dim](RankContext& context, const Instruction&,
                                                     std::vector<Tensor>& inputs) {
                         inputs[1] = rolled_cols(context, inputs[1], 1, d);
                         inputs[2] = rolled_cols(context, inputs[2], 1, d);
                       });
}

std::optional<Planted> heads_permuted(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (local_heads(program, site, 0, spot.rank) < 2) return std::nullopt;
  return change_output(spot.place, {spot.rank},
                       [d = program.config.head_dim](RankContext& context, const Instruction&,
                                                     std::vector<Tensor>& outputs) {
                         outputs[0] = rolled_cols(context, outputs[0], 1, d);
                       });
}

std::vector<std::string> q_modules(const Program& program, Phase) {
  return module_paths(program, [](const Program& p, const Module& m) {
    return m.role == ModuleRole::q && cut_by_rows(p, m);
  });
}

}  // namespace

std::vector<Fault> heads() {
  std::vector<Fault> all;
  all.push_back(
      {.name = "kv_heads_repeated",
       .kind = 'F',
       .source = "vectorch-ai/ScaleLLM #213",
       .what = "kv heads that several ranks need are handed out in turns (0 1 0 1, not 0 0 1 1)",
       .layer = FaultLayer::loader,
       .cause = "kv_head_of_neighbour",
       .any_rank = false,
       .places = kv_modules,
       .plant = [](const Program& p, const Spot& s) {
         return kv_head_by(p, s, [](int rank, std::int64_t kv) { return rank % kv; });
       }});
  all.push_back({.name = "kv_offset_not_divided",
                 .kind = 'F',
                 .source = "vllm-project/vllm #1735",
                 .what = "a kv head is found at rank x shard though several ranks share it",
                 .layer = FaultLayer::loader,
                 .cause = "kv_head_of_neighbour",
                 .any_rank = false,
                 .places = kv_modules,
                 .plant = [](const Program& p, const Spot& s) {
                   return kv_head_by(p, s, [](int rank, std::int64_t kv) {
                     return std::min<std::int64_t>(rank, kv - 1);
                   });
                 }});
  all.push_back({.name = "kv_cut_evenly",
                 .kind = 'F',
                 .source = "deepspeedai/DeepSpeed #8316",
                 .what = "the plan cuts kv heads evenly, not by the q heads that they serve",
                 .layer = FaultLayer::partition,
                 .cause = "run_ended",
                 .rule = "kv_head_missing",
                 .any_rank = false,
                 .places = kv_modules,
                 .plant = kv_cut_evenly});
  all.push_back({.name = "head_cut_inside",
                 .kind = 'F',
                 .source = "huggingface/transformers #48307; PaddlePaddle/PaddleFleetX #492",
                 .what = "the plan's border between two ranks lies inside a q head",
                 .layer = FaultLayer::partition,
                 .cause = "run_ended|statistic_of_shard",
                 .rule = "head_is_cut",
                 .places = q_modules,
                 .plant = head_cut_inside});
  all.push_back({.name = "heads_in_chunks",
                 .kind = 'F',
                 .source = "deepspeedai/DeepSpeed #8291",
                 .what = "the plan cuts q heads into pieces of ceil(n / P), o's columns evenly",
                 .layer = FaultLayer::partition,
                 .cause = "run_ended",
                 .rule = "ranges_differ|kv_head_missing",
                 .any_rank = false,
                 .places = q_modules,
                 .plant = heads_in_chunks});
  all.push_back({.name = "next_kv_head",
                 .kind = 'F',
                 .source = "vllm-project/vllm #13660",
                 .what = "one rank's q heads attend to the kv head after their own",
                 .layer = FaultLayer::execution,
                 .cause = "kv_head_of_neighbour",
                 .places = attentions,
                 .plant = next_kv_head});
  all.push_back({.name = "heads_permuted",
                 .kind = 'F',
                 .source = "aws-neuron/transformers-neuronx #108",
                 .what = "one rank's attention puts its heads in another order",
                 .layer = FaultLayer::execution,
                 .cause = "permuted_heads",
                 .places = attentions,
                 .plant = heads_permuted});
  return all;
}

}  // namespace shardcheck::faults
