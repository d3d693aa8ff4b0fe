// SPDX-License-Identifier: Apache-2.0
// Proofs of one cell, with and without a planted fault. Faults move values and use a device's own primitives, so that
// they are the same over the field and in f64.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "harness/prove.hpp"
#include "tests/harness/planted_fault.hpp"

namespace shardcheck::testing {

inline ProveOptions proof_of(const Setting& setting, const MakeFault& fault = nullptr) {
  ProveOptions options;
  options.meshes = {Mesh{{{"tp", setting.tp}}}};
  options.phases = {setting.phase};
  options.force = setting.force;
  if (fault) {
    options.fault = [fault](const Program& program, const RunSettings&, Phase) {
      return std::make_unique<PlantedFault>(fault(program));
    };
  }
  return options;
}

inline ProveReport proved(const Setting& setting, const ProveOptions& options) {
  return prove(load_model(setting.model), plan_of(setting), options, builtin_parts());
}
inline ProveReport proved(const Setting& setting, const MakeFault& fault = nullptr) {
  return proved(setting, proof_of(setting, fault));
}

inline std::string describe(const ProveCell& cell) {
  return prove_text(ProveReport{"", "", {}, true, {cell}});
}

/// WRONG, first at this tap by these ranks, with a counter-example in which some rank's value isn't the whole's.
/// Returns the cell.
inline ProveCell expect_wrong(const ProveReport& report, const std::string& tap,
                              const std::vector<int>& ranks) {
  EXPECT_EQ(report.cells.size(), 1u);
  const ProveCell cell = report.cells.at(0);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(cell.verdict, ProofVerdict::wrong) << describe(cell);
  EXPECT_TRUE(cell.first.has_value());
  if (!cell.first) return cell;
  EXPECT_EQ(cell.first->tap, tap) << describe(cell);
  EXPECT_EQ(cell.first->ranks, ranks) << describe(cell);
  EXPECT_TRUE(cell.counterexample.has_value()) << describe(cell);
  if (cell.counterexample) {
    EXPECT_EQ(cell.counterexample->tap, tap);
  }
  return cell;
}

/// Equal without the fault; with it wrong as above.
inline ProveCell expect_caught(const Setting& setting, const MakeFault& fault,
                               const std::string& tap, const std::vector<int>& ranks) {
  const ProveReport clean = proved(setting);
  EXPECT_TRUE(clean.passed()) << describe(clean.cells.at(0));
  return expect_wrong(proved(setting, fault), tap, ranks);
}

/// `tensor` with the columns [0, n) and [n, 2n) exchanged.
inline Tensor with_halves_swapped(RankContext& context, const Tensor& tensor, std::int64_t n) {
  const Tensor out = copy_of(context, tensor);
  context.device().copy(context.stream(), tensor.col_range(0, n), out.col_range(n, 2 * n));
  context.device().copy(context.stream(), tensor.col_range(n, 2 * n), out.col_range(0, n));
  return out;
}

/// `tensor` with every column one further to the left, the first one last.
inline Tensor rotated(RankContext& context, const Tensor& tensor) {
  const Tensor out = copy_of(context, tensor);
  const std::int64_t n = tensor.cols;
  context.device().copy(context.stream(), tensor.col_range(1, n), out.col_range(0, n - 1));
  context.device().copy(context.stream(), tensor.col_range(0, 1), out.col_range(n - 1, n));
  return out;
}

}  // namespace shardcheck::testing
