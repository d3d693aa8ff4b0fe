// SPDX-License-Identifier: Apache-2.0
// Kind E: the wrong shard, offset, length or axis when a weight is loaded.
#include <algorithm>
#include <cstring>

#include "harness/faults/kinds.hpp"
#include "harness/faults/slices.hpp"
#include "harness/faults/tensors.hpp"

namespace shardcheck::faults {
namespace {

std::optional<Planted> everyone_loads_shard_zero(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  std::map<int, Ranges> rows;
  for (int rank = 1; rank < program.mesh.ranks(); ++rank) {
    const Ranges first = rows_of(program, module, 0);
    // A shard of another size makes a loader stop; those of the same size go unnoticed.
    if (total(first) == total(rows_of(program, module, rank))) rows[rank] = first;
  }
  return wrong_rows(program, spot, false, rows);
}

std::optional<Planted> neighbours_rows(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  return wrong_rows(program, spot, false,
                    {{spot.rank, rows_of(program, module, neighbour(program, spot.rank))}});
}
std::optional<Planted> neighbours_columns(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  return wrong_cols(program, spot,
                    {{spot.rank, cols_of(program, module, neighbour(program, spot.rank))}});
}

/// Every range one further, or one back where it ends the tensor.
Ranges shifted(const Ranges& ranges, std::int64_t extent) {
  const bool room = std::all_of(ranges.begin(), ranges.end(),
                                [&](const Range& r) { return r.end < extent; });
  Ranges moved = ranges;
  for (Range& range : moved) {
    range.begin += room ? 1 : -1;
    range.end += room ? 1 : -1;
  }
  return moved;
}
std::optional<Planted> rows_shifted(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  return wrong_rows(program, spot, false,
                    {{spot.rank, shifted(rows_of(program, module, spot.rank), module.out)}});
}
std::optional<Planted> columns_shifted(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  return wrong_cols(program, spot,
                    {{spot.rank, shifted(cols_of(program, module, spot.rank), module.in)}});
}
std::optional<Planted> bias_shifted(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  return wrong_rows(program, spot, true,
                    {{spot.rank, shifted(rows_of(program, module, spot.rank), module.out)}});
}

/// A replicated vector is narrowed at an offset and wraps.
std::optional<Planted> replica_narrowed(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  if (module.out < 2) return std::nullopt;
  return wrong_rows(program, spot, false, {{spot.rank, {{1, module.out}, {0, 1}}}});
}

/// The same part of the same tensor of the next layer.
std::optional<Planted> other_layers_weight(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const Module* other = nullptr;
  for (const Module& m : program.modules) {
    if (m.role == module.role && m.layer >= 0 && m.layer != module.layer &&
        (other == nullptr || m.layer == module.layer + 1))
      other = &m;
  }
  if (other == nullptr || other->out != module.out || other->in != module.in) return std::nullopt;
  Planted planted;
  planted.first = {site_of(program, spot.phase, module), {spot.rank}};
  planted.prepare = [a = module, b = *other, rank = spot.rank](RankContext& context) {
    if (context.rank() != rank) return;
    context.set_weight(a.weight(), loaded(context, b, false, rows_of(context.program(), a, rank),
                                          cols_of(context.program(), a, rank)));
  };
  return planted;
}

/// A square weight that is stored the other way round.
std::optional<Planted> transposed(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  if (module.out != module.in) return std::nullopt;
  Planted planted;
  planted.first = {site_of(program, spot.phase, module), {spot.rank}};
  planted.prepare = [m = module, rank = spot.rank](RankContext& context) {
    if (context.rank() != rank) return;
    const Ranges rows = rows_of(context.program(), m, rank),
                 cols = cols_of(context.program(), m, rank);
    // Columns of the whole weight become the rows of the shard.
    const Tensor turned = loaded(context, m, false, cols, rows);
    const HostTensor from = context.device().to_host(context.stream(), turned);
    HostTensor to(from.dtype(), {from.cols(), from.rows()});
    const std::size_t size = from.bytes() /
                             static_cast<std::size_t>(std::max<std::int64_t>(1, from.elements()));
    std::byte* out = to.mutable_data();
    for (std::int64_t r = 0; r < from.rows(); ++r) {
      for (std::int64_t c = 0; c < from.cols(); ++c)
        std::memcpy(out + static_cast<std::size_t>(c * from.rows() + r) * size,
                    from.data() + static_cast<std::size_t>(r * from.cols() + c) * size, size);
    }
    context.set_weight(m.weight(), context.device().adopt(context.stream(), to));
  };
  return planted;
}

/// One element of a shard holds its neighbour's bits.
std::optional<Planted> one_element(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const Ranges rows = rows_of(program, module, spot.rank), cols = cols_of(program, module, spot.rank);
  if (total(rows) < 1 || total(cols) < 2) return std::nullopt;
  Planted planted;
  planted.first = {site_of(program, spot.phase, module), {spot.rank}};
  planted.prepare = [m = module, rank = spot.rank](RankContext& context) {
    if (context.rank() != rank) return;
    const Tensor shard = copy_of(context, context.weight(m.weight()));
    const Tensor row = shard.row_range(shard.rows / 2, shard.rows / 2 + 1);
    context.device().copy(context.stream(), row.col_range(0, 1), row.col_range(1, 2));
    context.set_weight(m.weight(), shard);
  };
  return planted;
}

/// Ranges of n / P entries, and the rest on no rank.
std::optional<Planted> remainder_dropped(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const ModulePlacement& placement = program.plan.placement(module.path);
  if (placement.cuts.size() != 1 || program.mesh.axes.size() > 1) return std::nullopt;
  const std::int64_t each = module.out / program.mesh.ranks();
  if (each * program.mesh.ranks() == module.out) return std::nullopt;
  Planted planted;
  planted.edit_plan = [path = module.path, each](ResolvedPlan& plan) {
    auto& rows = plan.weights[path].rows;
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      const auto at = static_cast<std::int64_t>(rank) * each;
      rows[rank] = {{at, at + each}};
    }
  };
  planted.first = {module.path, everyone(program)};
  // prove sees where rows are lost: in what the module's own op makes, by the ranks that hold other rows than they should.
  planted.differs = WrongTap{site_of(program, spot.phase, module), {}};
  for (const int rank : everyone(program)) {
    const std::int64_t at = rank * each;
    if (rows_of(program, module, rank) != Ranges{{at, at + each}})
      planted.differs->ranks.push_back(rank);
  }
  return planted;
}

/// Two ranks hold one shard, and another shard is held by none.
std::optional<Planted> shard_assigned_twice(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const ModulePlacement& placement = program.plan.placement(module.path);
  if (placement.may_overlap || placement.cuts.size() != 1) return std::nullopt;
  const int other = neighbour(program, spot.rank);
  const Ranges mine = rows_of(program, module, spot.rank), theirs = rows_of(program, module, other);
  if (mine == theirs || total(mine) != total(theirs)) return std::nullopt;
  Planted planted;
  planted.edit_plan = [path = module.path, rank = static_cast<std::size_t>(spot.rank),
                       theirs](ResolvedPlan& plan) { plan.weights[path].rows[rank] = theirs; };
  // The ranges are wrong, and each op is right by its own: what lacks something is the module's whole output.
  planted.first = {module.path, everyone(program)};
  if (module.kind == ModuleKind::embedding)  // a sum that is wrong as a whole
    planted.first.tap = site_of(program, spot.phase, module);
  planted.differs = WrongTap{site_of(program, spot.phase, module), {spot.rank}};
  return planted;
}

std::vector<std::string> norms(const Program& program, Phase) {
  return module_paths(program,
                      [](const Program&, const Module& m) { return m.kind == ModuleKind::norm; });
}
std::vector<std::string> linears(const Program& program, Phase) {
  return module_paths(program,
                      [](const Program&, const Module& m) { return m.kind == ModuleKind::linear; });
}

}  // namespace

std::vector<Fault> loader_slices() {
  std::vector<Fault> all;
  const auto row_cut_linears = [](const Program& program, Phase) {
    return module_paths(program, [](const Program& p, const Module& m) {
      return m.kind == ModuleKind::linear && cut_by_rows(p, m);
    });
  };
  all.push_back({.name = "everyone_loads_shard_zero",
                 .kind = 'E',
                 .source = "vllm-project/vllm-gguf-plugin #103",
                 .what = "every rank loads rank 0's rows",
                 .layer = FaultLayer::loader,
                 .cause = "weight_of_wrong_rank",
                 .any_rank = false,
                 .places = row_cut_linears,
                 .plant = everyone_loads_shard_zero});
  all.push_back({.name = "neighbours_rows",
                 .kind = 'E',
                 .source = "meta-llama/llama #201",
                 .what = "one rank loads the rows of the next",
                 .layer = FaultLayer::loader,
                 .cause = "weight_of_wrong_rank",
                 .places = row_cut_linears,
                 .plant = neighbours_rows});
  all.push_back({.name = "neighbours_columns",
                 .kind = 'E',
                 .source = "predibase/lorax #47",
                 .what = "one rank loads the columns of the next",
                 .layer = FaultLayer::loader,
                 .cause = "weight_of_wrong_rank",
                 .places = column_cut_modules,
                 .plant = neighbours_columns});
  all.push_back({.name = "rows_shifted",
                 .kind = 'E',
                 .source = "Wenyueh/MinivLLM #9",
                 .what = "one rank's rows begin one row off",
                 .layer = FaultLayer::loader,
                 .cause = "weight_shifted",
                 .places = row_cut_linears,
                 .plant = rows_shifted});
  all.push_back({.name = "columns_shifted",
                 .kind = 'E',
                 .source = "deepspeedai/DeepSpeed #1380",
                 .what = "one rank's columns begin one column off",
                 .layer = FaultLayer::loader,
                 .cause = "weight_shifted",
                 .places = column_cut_modules,
                 .plant = columns_shifted});
  all.push_back({.name = "bias_shifted",
                 .kind = 'E',
                 .source = "ml-explore/mlx #2987",
                 .what = "one rank's part of a bias begins one element off",
                 .layer = FaultLayer::loader,
                 .cause = "weight_shifted",
                 .places =
                     [](const Program& program, Phase) {
                       return module_paths(program, [](const Program& p, const Module& m) {
                         return m.kind == ModuleKind::linear && m.has_bias && cut_by_rows(p, m);
                       });
                     },
                 .plant = bias_shifted});
  all.push_back({.name = "replica_narrowed",
                 .kind = 'E',
                 .source = "vllm-project/vllm #48025",
                 .what = "one rank narrows a norm's weight that every rank holds whole",
                 .layer = FaultLayer::loader,
                 .cause = "weight_shifted|permuted_rows",
                 .places =
                     [](const Program& program, Phase) {
                       return module_paths(program, [](const Program& p, const Module& m) {
                         return m.kind == ModuleKind::norm && !cut_by_rows(p, m);
                       });
                     },
                 .plant = replica_narrowed});
  all.push_back({.name = "other_layers_weight",
                 .kind = 'E',
                 .source = "NVIDIA/Megatron-LM #2769",
                 .what = "one rank loads its part of another layer's weight",
                 .layer = FaultLayer::loader,
                 .cause = "weight_of_wrong_module",
                 .places =
                     [](const Program& program, Phase) {
                       return module_paths(program, [](const Program&, const Module& m) {
                         return m.kind == ModuleKind::linear && m.layer >= 0;
                       });
                     },
                 .plant = other_layers_weight});
  all.push_back({.name = "other_layers_norm",
                 .kind = 'E',
                 .source = "NVIDIA/TensorRT-LLM #6447",
                 .what = "one rank loads another layer's norm",
                 .layer = FaultLayer::loader,
                 .cause = "weight_of_wrong_module",
                 .places = norms,
                 .plant = other_layers_weight});
  all.push_back({.name = "weight_transposed",
                 .kind = 'E',
                 .source = "pytorch/torchtitan #4787",
                 .what = "one rank loads a square weight the other way round",
                 .layer = FaultLayer::loader,
                 .cause = "weight_transposed",
                 .places = linears,
                 .plant = transposed});
  all.push_back({.name = "one_weight_element",
                 .kind = 'E',
                 .source = "pytorch/torchtitan #4324",
                 .what = "one element of one rank's shard holds another's bits",
                 .layer = FaultLayer::loader,
                 .cause = "weight_differs",
                 .places = linears,
                 .plant = one_element});
  all.push_back({.name = "remainder_dropped",
                 .kind = 'E',
                 .source = "huggingface/transformers #37051",
                 .what = "the plan gives every rank n / P rows, and the rest to nobody",
                 .layer = FaultLayer::partition,
                 .cause = "never_written",
                 .rule = "ranges_missing",
                 .any_rank = false,
                 .places =
                     [](const Program& program, Phase) {
                       return module_paths(program, [](const Program& p, const Module& m) {
                         return m.role == ModuleRole::lm_head && cut_by_rows(p, m);
                       });
                     },
                 .plant = remainder_dropped});
  all.push_back({.name = "shard_assigned_twice",
                 .kind = 'E',
                 .source = "NVIDIA/TensorRT-LLM #11618",
                 .what = "the plan gives one rank the rows of another, and its own to nobody",
                 .layer = FaultLayer::partition,
                 .cause = "never_written|unexplained",
                 .rule = "ranges_overlap|ranges_missing",
                 .places =
                     [](const Program& program, Phase) {
                       return module_paths(program, [](const Program& p, const Module& m) {
                         return (m.kind == ModuleKind::embedding || m.role == ModuleRole::lm_head) &&
                                cut_by_rows(p, m);
                       });
                     },
                 .plant = shard_assigned_twice});
  return all;
}

}  // namespace shardcheck::faults
