// SPDX-License-Identifier: Apache-2.0
// Kind K: the vocabulary - its ranges, its borders, tables that two modules share.
#include <algorithm>

#include "harness/faults/kinds.hpp"
#include "harness/faults/slices.hpp"
#include "harness/faults/tensors.hpp"

namespace shardcheck::faults {
namespace {

/// Lookups in tables that ranks share by rows.
std::vector<std::string> cut_lookups(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program& p, const Instruction& i) {
    return is_op(i, "embedding") && makes_partial(p, i);
  });
}

Tensor look_up(RankContext& context, const Instruction& i, const Tensor& ids, const Ranges& believed) {
  std::vector<std::pair<std::int64_t, std::int64_t>> owned;
  for (const Range& range : believed) owned.emplace_back(range.begin, range.end);
  const Tensor out = context.allocate(i.outputs[0]);
  context.device().embedding(context.stream(), ids,
                             context.weight(module_of(context.program(), i)->weight()), owned, out);
  return out;
}

std::optional<Planted> range_off_by_one(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  Ranges believed = rows_of(program, *module_of(program, site), spot.rank);
  if (believed.size() != 1 || believed[0].size() < 2) return std::nullopt;
  const std::int64_t by = believed[0].begin > 0 ? -1 : 1;
  believed[0].begin += by;
  believed[0].end += by;
  return execute_instead(
      spot.place, {spot.rank},
      [believed](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        return std::vector<Tensor>{look_up(context, i, inputs[0], believed)};
      });
}

/// Ids of other ranks aren't masked: they are looked up modulo the rank's own rows, and their rows stand in the sum.
std::optional<Planted> lookup_without_mask(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  const Ranges own = rows_of(program, *module_of(program, site), spot.rank);
  if (own.size() != 1 || own[0].size() < 1) return std::nullopt;
  if (program.value(site.inputs[0]).name != "ids") return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [own = own[0]](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const std::vector<std::int64_t>& ids = context.step().ids;
        HostTensor folded(DType::i64, {1, static_cast<std::int64_t>(ids.size())});
        const auto out = folded.as_mutable<std::int64_t>();
        for (std::size_t t = 0; t < ids.size(); ++t) {
          const std::int64_t local = (ids[t] - own.begin) % own.size();
          out[t] = own.begin + (local + own.size()) % own.size();
        }
        const Tensor other = context.device().allocate(context.stream(), DType::i64, 1, inputs[0].cols);
        context.device().upload(context.stream(), folded, other);
        return std::vector<Tensor>{look_up(context, i, other, {own})};
      });
}

/// The first row of a shard is the last one of the shard before.
std::optional<Planted> border_row(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const Ranges own = rows_of(program, module, spot.rank);
  if (own.size() != 1 || own[0].size() < 2 || own[0].begin == 0) return std::nullopt;
  return wrong_rows(program, spot, false,
                    {{spot.rank, {{own[0].begin - 1, own[0].begin}, {own[0].begin + 1, own[0].end}}}});
}

/// A rank loads the next one's rows of the table, and looks its own ids up in them.
std::optional<Planted> neighbours_table(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  return wrong_rows(program, spot, false,
                    {{spot.rank, rows_of(program, module, neighbour(program, spot.rank))}});
}

}  // namespace

std::vector<Fault> vocabulary() {
  std::vector<Fault> all;
  const auto tables = [](const Program& program, Phase) {
    return module_paths(program, [](const Program& p, const Module& m) {
      return m.kind == ModuleKind::embedding && cut_by_rows(p, m);
    });
  };
  const auto heads_of_vocabulary = [](const Program& program, Phase) {
    return module_paths(program, [](const Program& p, const Module& m) {
      return m.role == ModuleRole::lm_head && cut_by_rows(p, m);
    });
  };
  all.push_back({.name = "vocabulary_range_off_by_one",
                 .kind = 'K',
                 .source = "huggingface/transformers #37051",
                 .what = "one rank believes that its vocabulary begins one entry off",
                 .layer = FaultLayer::execution,
                 .cause = "weight_shifted|rows_of_wrong_token",
                 .places = cut_lookups,
                 .plant = range_off_by_one});
  all.push_back({.name = "lookup_without_mask",
                 .kind = 'K',
                 .source = "huggingface/transformers #47503",
                 .what = "one rank looks up ids that other ranks own, too",
                 .layer = FaultLayer::execution,
                 .cause = "rows_not_masked|permuted_rows|rows_of_wrong_token",
                 .places = cut_lookups,
                 .plant = lookup_without_mask});
  all.push_back({.name = "table_border_row",
                 .kind = 'K',
                 .source = "NVIDIA-NeMo/Megatron-Bridge #5353",
                 .what = "the first row of one rank's table is the last of the rank before",
                 .layer = FaultLayer::loader,
                 .cause = "weight_shifted",
                 .places = tables,
                 .plant = border_row});
  all.push_back({.name = "head_border_row",
                 .kind = 'K',
                 .source = "sgl-project/sglang #16215",
                 .what = "the first row of one rank's output head is the last of the rank before",
                 .layer = FaultLayer::loader,
                 .cause = "weight_shifted",
                 .places = heads_of_vocabulary,
                 .plant = border_row});
  all.push_back({.name = "neighbours_table",
                 .kind = 'K',
                 .source = "vllm-project/vllm #50158",
                 .what = "one rank holds the next one's rows of the table",
                 .layer = FaultLayer::loader,
                 .cause = "weight_of_wrong_rank",
                 .places = tables,
                 .plant = neighbours_table});
  return all;
}

}  // namespace shardcheck::faults
