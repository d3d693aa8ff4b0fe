// SPDX-License-Identifier: Apache-2.0
// Kind L: ranks decide for themselves and go different ways. Exchanges that don't match are found by the communicator.
#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/collectives.hpp"

namespace shardcheck::faults {
namespace {

using Kind = CollectiveStep::Kind;

std::vector<std::string> all_reduces(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program&, const Instruction& i) {
    return is_collective(i, Kind::all_reduce);
  });
}

std::optional<Planted> exchange_skipped(const Program& program, const Spot& spot) {
  Planted planted = execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor out = context.allocate(i.outputs[0]);
        context.device().cast(context.stream(), inputs[0], out);
        return std::vector<Tensor>{out};
      });
  planted.first.ranks = everyone(program);  // all stop
  return planted;
}

std::optional<Planted> other_exchange(const Program& program, const Spot& spot) {
  Planted planted = execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        Instruction other = i;
        other.collective.kind = Kind::broadcast;
        other.collective.root = 0;
        return std::vector<Tensor>{run_collective(other, context, inputs[0])};
      });
  planted.first.ranks = everyone(program);
  return planted;
}

/// In decode one rank goes on with a token that it picked itself.
std::optional<Planted> own_token(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (program.value(site.inputs[0]).name != "ids") return std::nullopt;
  // Tokens that the rank's part of the table has, so that they show.
  const Ranges own = rows_of(program, *module_of(program, site), spot.rank);
  if (own.empty() || own[0].size() < 2) return std::nullopt;
  return change_inputs(
      spot.place, {spot.rank},
      [own = own[0]](RankContext& context, const Instruction&, std::vector<Tensor>& inputs) {
        if (context.step().phase != Phase::decode) return;
        const std::vector<std::int64_t>& ids = context.step().ids;
        HostTensor other(DType::i64, {1, static_cast<std::int64_t>(ids.size())});
        for (std::size_t t = 0; t < ids.size(); ++t)
          other.as_mutable<std::int64_t>()[t] = own.begin + (ids[t] + 1) % own.size();
        const Tensor uploaded = context.device().allocate(context.stream(), DType::i64, 1,
                                                          inputs[0].cols);
        context.device().upload(context.stream(), other, uploaded);
        inputs[0] = uploaded;
      });
}

}  // namespace

std::vector<Fault> divergent_ranks() {
  std::vector<Fault> all;
  all.push_back({.name = "exchange_skipped_by_one_rank",
                 .kind = 'L',
                 .source = "NVIDIA/TensorRT-LLM #1415",
                 .what = "one rank doesn't take part in an exchange",
                 .layer = FaultLayer::collective,
                 .cause = "collective_differs",
                 .places = all_reduces,
                 .plant = exchange_skipped});
  all.push_back({.name = "other_exchange_on_one_rank",
                 .kind = 'L',
                 .source = "sgl-project/sglang #30242",
                 .what = "one rank calls another exchange than its peers",
                 .layer = FaultLayer::collective,
                 .cause = "collective_differs",
                 .places = all_reduces,
                 .plant = other_exchange});
  all.push_back({.name = "own_token_in_decode",
                 .kind = 'L',
                 .source = "huggingface/transformers #36634; openai/gpt-oss #270",
                 .what = "in decode one rank goes on with a token of its own",
                 .layer = FaultLayer::execution,
                 .cause = "rows_of_wrong_token|permuted_rows|weight_shifted",
                 .phase = Phase::decode,
                 .places =
                     [](const Program& p, Phase phase) {
                       return sites(p, phase, [](const Program&, const Instruction& i) {
                         return is_op(i, "embedding");
                       });
                     },
                 .plant = own_token});
  return all;
}

}  // namespace shardcheck::faults
