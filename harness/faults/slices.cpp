// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/slices.hpp"

#include <algorithm>

#include "harness/faults/tensors.hpp"

namespace shardcheck::faults {

std::optional<Planted> wrong_slices(const Program& program, const Spot& spot, bool bias,
                                    const std::map<int, OtherSlice>& slices) {
  const Module& module = *program.find_module(spot.place);
  std::map<int, OtherSlice> wrong;
  for (const auto& [rank, slice] : slices) {
    const Ranges rows = rows_of(program, module, rank), cols = cols_of(program, module, rank);
    if (total(slice.rows) != total(rows) || total(slice.cols) != total(cols)) return std::nullopt;
    if (total(rows) == 0 || total(cols) == 0) continue;
    for (const Range& range : slice.rows) {
      if (range.begin < 0 || range.end > module.out) return std::nullopt;
    }
    for (const Range& range : slice.cols) {
      if (range.begin < 0 || range.end > std::max<std::int64_t>(module.in, 1)) return std::nullopt;
    }
    if (slice.rows != rows || slice.cols != cols) wrong[rank] = slice;
  }
  if (wrong.empty()) return std::nullopt;
  Planted planted;
  planted.first.tap = site_of(program, spot.phase, module);
  if (bias) {
    // A bias of its own op is the module's last value, not its partial.
    for (const Instruction& i : program.instructions.at(spot.phase)) {
      if (is_op(i, "bias") && i.module == module.path) planted.first.tap = i.site;
    }
  }
  for (const auto& [rank, slice] : wrong) planted.first.ranks.push_back(rank);
  planted.prepare = [path = module.path, bias, wrong](RankContext& context) {
    const auto found = wrong.find(context.rank());
    if (found == wrong.end()) return;
    const Module& m = *context.program().find_module(path);
    context.set_weight(bias ? m.bias() : m.weight(),
                       loaded(context, m, bias, found->second.rows, found->second.cols));
  };
  return planted;
}

std::optional<Planted> wrong_rows(const Program& program, const Spot& spot, bool bias,
                                  const std::map<int, Ranges>& rows) {
  const Module& module = *program.find_module(spot.place);
  std::map<int, OtherSlice> slices;
  for (const auto& [rank, ranges] : rows) slices[rank] = {ranges, cols_of(program, module, rank)};
  return wrong_slices(program, spot, bias, slices);
}

std::optional<Planted> wrong_cols(const Program& program, const Spot& spot,
                                  const std::map<int, Ranges>& cols) {
  const Module& module = *program.find_module(spot.place);
  std::map<int, OtherSlice> slices;
  for (const auto& [rank, ranges] : cols) slices[rank] = {rows_of(program, module, rank), ranges};
  return wrong_slices(program, spot, false, slices);
}

std::vector<Ranges> by_section(const Module& module, const Ranges& held) {
  std::vector<Ranges> parts;
  for (const Section& section : module.sections) {
    Ranges& part = parts.emplace_back();
    for (const Range& range : held) {
      const std::int64_t begin = std::max(range.begin, section.begin);
      const std::int64_t end = std::min(range.end, section.end);
      if (begin < end) part.push_back({begin, end});
    }
  }
  return parts;
}

std::vector<std::string> column_cut_modules(const Program& program, Phase) {
  return module_paths(program, [](const Program& p, const Module& m) { return cut_by_columns(p, m); });
}

}  // namespace shardcheck::faults
