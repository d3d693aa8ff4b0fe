// SPDX-License-Identifier: Apache-2.0
// Faults for verify(): what one rank does wrong, and the check that the verdict names it - the first wrong tap, the ranks
// that own it - while the same run without the fault passes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/verify.hpp"
#include "model/model.hpp"
#include "sharded/plan.hpp"
#include "sharded/runner.hpp"

namespace shardcheck::testing {

/// The moments of a run at which a fault may act; empty: it does nothing there. Called from every rank's thread.
struct Fault {
  std::function<void(RankContext&)> prepare;
  std::function<bool(RankContext&, const Instruction&, const std::vector<Tensor>& inputs,
                     std::vector<Tensor>& outputs)>
      replace;
  std::function<void(RankContext&, const Instruction&, std::vector<Tensor>&outputs)> after, between;
};

class PlantedFault final : public Interposer {
 public:
  explicit PlantedFault(Fault fault) : fault_(std::move(fault)) {}
  void prepare(RankContext& context) override {
    if (fault_.prepare) fault_.prepare(context);
  }
  bool replace(RankContext& context, const Instruction& instruction,
               const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) override {
    return fault_.replace && fault_.replace(context, instruction, inputs, outputs);
  }
  void after(RankContext& context, const Instruction& instruction,
             std::vector<Tensor>& outputs) override {
    if (fault_.after) fault_.after(context, instruction, outputs);
  }
  void between(RankContext& context, const Instruction& instruction,
               std::vector<Tensor>& outputs) override {
    if (fault_.between) fault_.between(context, instruction, outputs);
  }

 private:
  Fault fault_;
};

/// A tensor of the same shape and dtype with numbers changed on the host: change(values, cols), row-major.
template <typename Change>
Tensor changed(RankContext& context, const Tensor& tensor, Change change) {
  Device& device = context.device();
  std::vector<double> values = device.to_host(context.stream(), tensor).to_f64();
  change(values, static_cast<std::size_t>(tensor.cols));
  const Tensor out = device.allocate(context.stream(), tensor.dtype, tensor.rows, tensor.cols);
  device.upload(context.stream(), round_to(tensor.dtype, {tensor.rows, tensor.cols}, values), out);
  return out;
}

/// A dense copy in new memory.
inline Tensor copy_of(RankContext& context, const Tensor& tensor) {
  const Tensor out = context.device().allocate(context.stream(), tensor.dtype, tensor.rows, tensor.cols);
  context.device().copy(context.stream(), tensor, out);
  return out;
}

/// One slot per rank for what a fault remembers: each rank's thread touches its own.
template <typename T>
using PerRank = std::shared_ptr<std::vector<T>>;
template <typename T>
PerRank<T> per_rank(int ranks) {
  return std::make_shared<std::vector<T>>(static_cast<std::size_t>(ranks));
}
template <typename T>
T& mine(const PerRank<T>& slots, const RankContext& context) {
  return (*slots)[static_cast<std::size_t>(context.rank())];
}

/// A cell to run: a shipped model under a plan.
struct Setting {
  std::string model = "tiny-llama";
  int tp = 2;
  DType dtype = DType::f64;
  Phase phase = Phase::prefill;
  std::string plan = "megatron";  // a shipped plan's name, or a plan's text
  std::int64_t tokens = 14, decode_steps = 4;
  bool force = false;
};

/// The same with something else.
inline Setting at(Setting setting, int tp, DType dtype, Phase phase = Phase::prefill) {
  setting.tp = tp;
  setting.dtype = dtype;
  setting.phase = phase;
  return setting;
}

inline Plan plan_of(const Setting& setting) {
  return setting.plan.find('{') == std::string::npos ? load_plan(setting.plan)
                                                     : parse_plan(setting.plan, "planted.json");
}

using MakeFault = std::function<Fault(const Program&)>;

/// Verifies one cell, with a fault if `fault` isn't null.
inline VerifyReport verified(const Setting& setting, const MakeFault& fault = nullptr) {
  const Model model = load_model(setting.model);
  VerifyOptions options;
  options.meshes = {Mesh{{{"tp", setting.tp}}}};
  options.dtypes = {setting.dtype};
  options.phases = {setting.phase};
  options.inputs.tokens = setting.tokens;
  options.inputs.decode_steps = setting.decode_steps;
  options.force = setting.force;
  if (fault) {
    options.fault = [&](const Program& program, const RunSettings&, Phase) {
      return std::make_unique<PlantedFault>(fault(program));
    };
  }
  return verify(model, plan_of(setting), options, builtin_parts());
}

inline std::string describe(const CellReport& cell) {
  std::string text = std::string(name(cell.verdict));
  if (cell.first) {
    text += "; first " + cell.first->tap + " by " + std::string(name(cell.first->gate)) + ", " +
            std::string(name(cell.first->phase)) + " step " + std::to_string(cell.first->step) +
            ", ranks";
    for (const int rank : cell.first->ranks) text += " " + std::to_string(rank);
    text += "; " + cell.first->cause;
  }
  for (const std::string& sentence : cell.mistrust) text += "\nmistrusted " + sentence;
  return text;
}

inline std::string describe(const Setting& setting) {
  return setting.model + " tp " + std::to_string(setting.tp) + " " +
         std::string(name(setting.dtype)) + " " + std::string(name(setting.phase));
}

/// Where a run must be found wrong.
struct Expected {
  std::string tap;
  std::vector<int> ranks;
  std::optional<Phase> phase = {};
  std::optional<Gate> gate = {};
};

inline void expect_first(const CellReport& cell, const Expected& expected) {
  EXPECT_EQ(cell.verdict, Verdict::failed);
  ASSERT_TRUE(cell.first.has_value());
  EXPECT_EQ(cell.first->tap, expected.tap) << describe(cell);
  EXPECT_EQ(cell.first->ranks, expected.ranks) << describe(cell);
  EXPECT_EQ(cell.first->all_ranks, static_cast<int>(expected.ranks.size()) == cell.mesh.ranks());
  if (expected.phase) {
    EXPECT_EQ(cell.first->phase, *expected.phase) << describe(cell);
  }
  if (expected.gate) {
    EXPECT_EQ(cell.first->gate, *expected.gate) << describe(cell);
  }
}

/// The run passes; with the fault it fails, first at that place. Returns the faulty cell.
inline CellReport expect_caught(const Setting& setting, const MakeFault& fault,
                                const Expected& expected) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting) + ": " + expected.tap);
  const VerifyReport clean = verified(setting);
  EXPECT_TRUE(clean.passed()) << "without the fault: " << describe(clean.cells.at(0));
  const CellReport cell = verified(setting, fault).cells.at(0);
  expect_first(cell, expected);
  return cell;
}

/// Every rank below `ranks`.
inline std::vector<int> all_ranks(int ranks) {
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  return all;
}

}  // namespace shardcheck::testing
