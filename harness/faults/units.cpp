// SPDX-License-Identifier: Apache-2.0
// Kind J: ranks' numbers in different units, as where each scales by its own maximum, meet in one exchange.
#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/collectives.hpp"

namespace shardcheck::faults {
namespace {

std::vector<std::string> partials(const Program& program, Phase phase) {
  return sites(program, phase,
               [](const Program& p, const Instruction& i) { return makes_partial(p, i); });
}
std::vector<std::string> gathers(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program&, const Instruction& i) {
    return is_collective(i, CollectiveStep::Kind::all_gather);
  });
}

std::optional<Planted> partial_in_other_unit(const Program& program, const Spot& spot) {
  // A factor that isn't the number of ranks.
  const int times = program.mesh.ranks() == 4 ? 3 : 2;
  return change_output(spot.place, {spot.rank},
                       [times](RankContext& context, const Instruction&, std::vector<Tensor>& outputs) {
                         outputs[0] = doubled(context, outputs[0], times);
                       });
}

std::optional<Planted> gathered_in_other_unit(const Program& program, const Spot& spot) {
  const int times = program.mesh.ranks() == 8 ? 2 : 3;
  Planted planted = execute_instead(
      spot.place, {spot.rank},
      [times](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        return std::vector<Tensor>{run_collective(i, context, doubled(context, inputs[0], times))};
      });
  planted.first.ranks = everyone(program);
  return planted;
}

}  // namespace

std::vector<Fault> units() {
  std::vector<Fault> all;
  all.push_back({.name = "partial_in_other_unit",
                 .kind = 'J',
                 .source = "weicj/vLLM-2080Ti-Definitive #207",
                 .what = "one rank's partial sum is in other units than its peers'",
                 .layer = FaultLayer::execution,
                 .cause = "wrong_factor",
                 .places = partials,
                 .plant = partial_in_other_unit});
  all.push_back({.name = "gathered_in_other_unit",
                 .kind = 'J',
                 .source = "vllm-project/vllm #54683; NVIDIA/TransformerEngine #335",
                 .what = "one rank's part of a gather is in other units than its peers'",
                 .layer = FaultLayer::collective,
                 .cause = "wrong_factor",
                 .places = gathers,
                 .plant = gathered_in_other_unit});
  return all;
}

}  // namespace shardcheck::faults
