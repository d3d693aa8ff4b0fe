// SPDX-License-Identifier: Apache-2.0
// Kind M: the exchange itself - buffers that are not written, reused or read too early, parts in the wrong place.
#include <algorithm>
#include <memory>

#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/collectives.hpp"

namespace shardcheck::faults {
namespace {

using Kind = CollectiveStep::Kind;

std::vector<std::string> exchanges_of(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program&, const Instruction& i) {
    return is_collective(i, Kind::all_reduce) || is_collective(i, Kind::all_gather);
  });
}
std::vector<std::string> all_reduces(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program& p, const Instruction& i) {
    return is_collective(i, Kind::all_reduce) && i.collective.op == ReduceOp::sum &&
           !p.value(i.outputs[0]).layout.any_partial();
  });
}
std::vector<std::string> feature_gathers(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program& p, const Instruction& i) {
    return is_collective(i, Kind::all_gather) && !p.value(i.inputs[0]).layout.owned.empty();
  });
}

std::optional<Planted> row_not_received(const Program&, const Spot& spot) {
  return change_output(spot.place, {spot.rank},
                       [](RankContext& context, const Instruction&, std::vector<Tensor>& outputs) {
                         outputs[0] = copy_of(context, outputs[0]);
                         const std::int64_t last = outputs[0].rows - 1;
                         if (last >= 0)
                           context.device().poison(context.stream(),
                                                   outputs[0].row_range(last, last + 1));
                       });
}

std::optional<Planted> rows_exchanged(const Program&, const Spot& spot) {
  return change_output(spot.place, {spot.rank},
                       [](RankContext& context, const Instruction&, std::vector<Tensor>& outputs) {
                         outputs[0] = rolled_rows(context, outputs[0], 1);
                       });
}

/// A quarter of the columns, as a chunk of a ring would, keeps the rank's own partial.
std::optional<Planted> chunk_not_summed(const Program&, const Spot& spot) {
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor out = copy_of(context, run_collective(i, context, inputs[0]));
        const std::int64_t end = std::max<std::int64_t>(1, out.cols / 4);
        context.device().cast(context.stream(), inputs[0].col_range(0, end), out.col_range(0, end));
        return std::vector<Tensor>{out};
      });
}

/// The parts lie in the receive buffer in the order of the ranks backwards.
std::optional<Planted> gathered_backwards(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  const Layout& part = program.value(site.inputs[0]).layout;
  std::vector<Ranges> parts;
  for (const int rank : program.mesh.group(spot.rank, site.axes))
    parts.push_back(part.feature_ranges(rank));
  for (const Ranges& ranges : parts) {
    if (ranges.size() != 1) return std::nullopt;
  }
  return change_output(spot.place, {spot.rank},
                       [parts](RankContext& context, const Instruction&, std::vector<Tensor>& outputs) {
                         std::vector<Tensor> backwards;
                         for (auto p = parts.rbegin(); p != parts.rend(); ++p)
                           backwards.push_back(outputs[0].col_range((*p)[0].begin, (*p)[0].end));
                         outputs[0] = joined_cols(context, backwards);
                       });
}

/// Where consumers of an overwritten value go wrong first: prove sees no bytes, only what follows from them.
Planted before_readers(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  Planted planted;
  planted.first = {spot.place, {spot.rank}};
  const auto next = readers(program, spot.phase, site.outputs[0]);
  if (!next.empty())
    planted.differs = WrongTap{program.value(next[0]->outputs[0]).name, {spot.rank}};
  return planted;
}

std::optional<Planted> overwritten(const Program& program, const Spot& spot) {
  Planted planted = before_readers(program, spot);
  planted.between = [spot](RankContext& context, const Instruction& i, std::vector<Tensor>& outputs) {
    if (i.site != spot.place || context.rank() != spot.rank || outputs[0].cols < 2) return;
    // Every feature: a reader may slice the row.
    context.device().copy(context.stream(), rolled_cols(context, outputs[0], 1), outputs[0]);
  };
  return planted;
}

/// Consumers read what the buffer held a step earlier.
std::optional<Planted> read_too_early(const Program& program, const Spot& spot) {
  Planted planted = before_readers(program, spot);
  const auto before = std::make_shared<Tensor>();
  planted.between = [spot, before](RankContext& context, const Instruction& i,
                                   std::vector<Tensor>& outputs) {
    if (i.site != spot.place || context.rank() != spot.rank) return;
    const Tensor now = outputs[0];
    if (*before && before->rows == now.rows && before->cols == now.cols) outputs[0] = *before;
    *before = now;
  };
  return planted;
}

/// The sum of the step before is taken for this step's.
std::optional<Planted> sum_of_step_before(const Program&, const Spot& spot) {
  const auto before = std::make_shared<Tensor>();
  return change_output(spot.place, {spot.rank},
                       [before](RankContext&, const Instruction&, std::vector<Tensor>& outputs) {
                         const Tensor now = outputs[0];
                         if (*before && before->rows == now.rows && before->cols == now.cols)
                           outputs[0] = *before;
                         *before = now;
                       });
}

/// The residual of a fused sum and norm is fresh memory.
std::optional<Planted> residual_is_fresh_memory(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (site.inputs.size() != 2) return std::nullopt;
  return change_inputs(spot.place, {spot.rank},
                       [](RankContext& context, const Instruction&, std::vector<Tensor>& inputs) {
                         inputs[0] = copy_of(context, inputs[0]);
                         context.device().poison(context.stream(), inputs[0]);
                       });
}

std::optional<Planted> residual_left_out(const Program&, const Spot& spot) {
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction&, const std::vector<Tensor>& inputs) {
        return std::vector<Tensor>{copy_of(context, inputs[1])};
      });
}

std::vector<std::string> adds(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program&, const Instruction& i) { return is_op(i, "add"); });
}

}  // namespace

std::vector<Fault> exchanges() {
  std::vector<Fault> all;
  all.push_back({.name = "row_not_received",
                 .kind = 'M',
                 .source = "sgl-project/sglang #8532; vllm-project/vllm #34412",
                 .what = "a row of one rank's receive buffer is never written",
                 .layer = FaultLayer::collective,
                 .cause = "never_written",
                 .places = exchanges_of,
                 .plant = row_not_received});
  all.push_back({.name = "received_rows_exchanged",
                 .kind = 'M',
                 .source = "noonghunna/club-3090 #922",
                 .what = "one rank receives rows in each other's place",
                 .layer = FaultLayer::collective,
                 .cause = "permuted_rows",
                 .places = exchanges_of,
                 .plant = rows_exchanged});
  all.push_back({.name = "chunk_not_summed",
                 .kind = 'M',
                 .source = "pytorch/pytorch #84803",
                 .what = "a chunk of one rank's sum is its own partial",
                 .layer = FaultLayer::collective,
                 .cause = "one_ranks_partial",
                 .places = all_reduces,
                 .plant = chunk_not_summed});
  all.push_back({.name = "gathered_backwards",
                 .kind = 'M',
                 .source = "ndif-team/nnsight #719",
                 .what = "one rank joins the parts in the wrong order",
                 .layer = FaultLayer::collective,
                 .cause = "rows_of_wrong_rank",
                 .places = feature_gathers,
                 .plant = gathered_backwards});
  all.push_back({.name = "overwritten_before_read",
                 .kind = 'M',
                 .source = "NVIDIA/Megatron-LM #5222; deepspeedai/DeepSpeed #5059",
                 .what = "one rank's buffer is written to between a sum and its readers",
                 .layer = FaultLayer::collective,
                 .cause = "overwritten",
                 .places = all_reduces,
                 .plant = overwritten});
  all.push_back({.name = "read_before_received",
                 .kind = 'M',
                 .source = "InfiniTensor/InfiniLM #540",
                 .what = "one rank's readers see what a buffer held a step earlier",
                 .layer = FaultLayer::collective,
                 .cause = "overwritten",
                 .phase = Phase::decode,
                 .places = all_reduces,
                 .plant = read_too_early});
  all.push_back({.name = "sum_of_step_before",
                 .kind = 'M',
                 .source = "deepspeedai/DeepSpeed #7805",
                 .what = "one rank takes the sum of the step before for this step's",
                 .layer = FaultLayer::collective,
                 .cause = "shard_stale",
                 .phase = Phase::decode,
                 .places = all_reduces,
                 .plant = sum_of_step_before});
  all.push_back({.name = "residual_is_fresh_memory",
                 .kind = 'M',
                 .source = "vllm-project/vllm #41972",
                 .what = "one rank adds memory that nobody wrote in place of the residual",
                 .layer = FaultLayer::execution,
                 .cause = "never_written",
                 .places = adds,
                 .plant = residual_is_fresh_memory});
  all.push_back({.name = "residual_left_out",
                 .kind = 'M',
                 .source = "vllm-project/vllm #24021",
                 .what = "one rank doesn't add the residual",
                 .layer = FaultLayer::execution,
                 .cause = "residual_missing",
                 .places = adds,
                 .plant = residual_left_out});
  return all;
}

}  // namespace shardcheck::faults
