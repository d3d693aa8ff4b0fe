// SPDX-License-Identifier: Apache-2.0
// Faults whose cause must be named: what every rank made of a value is kept, so that a fault can give a rank another's.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "sharded/op.hpp"
#include "tests/harness/planted_fault.hpp"

namespace shardcheck::testing {

/// Values of taps by step and rank, row-major, widened. Thread safe; what a rank reads of another's must be there already:
/// it was put in before a collective that both took part in.
class KeptValues {
 public:
  void put(RankContext& context, const std::string& tap, const Tensor& tensor) {
    std::vector<double> values = context.device().to_host(context.stream(), tensor).to_f64();
    const std::lock_guard lock(mutex_);
    values_[{tap, context.step().phase, context.step().index, context.rank()}] = std::move(values);
  }
  /// Empty if it isn't there.
  std::vector<double> get(const std::string& tap, const Step& step, int rank, int steps_back = 0) const {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find({tap, step.phase, step.index - steps_back, rank});
    return found == values_.end() ? std::vector<double>{} : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, Phase, int, int>, std::vector<double>> values_;
};

/// changes(values, cols, rank, step): the output `tap` on these ranks, when all ranks' values of `sources` are kept.
struct Change {
  std::string tap;
  std::vector<int> ranks;
  std::vector<std::string> sources;
  std::function<void(std::vector<double>& values, std::size_t cols, const KeptValues&, RankContext&)> change;
};

inline MakeFault changing(const Change& change) {
  const auto kept = std::make_shared<KeptValues>();
  return [kept, change](const Program& program) {
    Fault fault;
    fault.after = [kept, change, &program](RankContext& context, const Instruction& instruction,
                                           std::vector<Tensor>& outputs) {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const std::string& tap = program.value(instruction.outputs[i]).name;
        for (const std::string& source : change.sources) {
          if (source == tap) kept->put(context, tap, outputs[i]);
        }
        const bool here = std::find(change.ranks.begin(), change.ranks.end(), context.rank()) !=
                          change.ranks.end();
        if (tap != change.tap || !here) continue;
        outputs[i] = changed(context, outputs[i], [&](std::vector<double>& values, std::size_t cols) {
          change.change(values, cols, *kept, context);
        });
      }
    };
    return fault;
  };
}

/// An op of one rank done by other means.
inline MakeFault replacing(
    const std::string& site, std::vector<int> ranks,
    std::function<Tensor(RankContext&, const Instruction&, const std::vector<Tensor>&)> run) {
  return [site, ranks, run](const Program&) {
    Fault fault;
    fault.replace = [site, ranks, run](RankContext& context, const Instruction& instruction,
                                       const std::vector<Tensor>& inputs,
                                       std::vector<Tensor>& outputs) {
      if (instruction.site != site ||
          std::find(ranks.begin(), ranks.end(), context.rank()) == ranks.end())
        return false;
      outputs = {run(context, instruction, inputs)};
      return true;
    };
    return fault;
  };
}

/// The cell fails first at the tap, and its cause is this one.
inline CellReport expect_cause(const Setting& setting, const MakeFault& fault,
                               const std::string& tap, const std::string& cause) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting) + ": " + tap + " " + cause);
  const CellReport cell = verified(setting, fault).cells.at(0);
  EXPECT_EQ(cell.verdict, Verdict::failed);
  if (!cell.first) {
    ADD_FAILURE() << "no first failure";
    return cell;
  }
  EXPECT_EQ(cell.first->tap, tap) << describe(cell);
  EXPECT_EQ(cell.first->cause_name, cause) << describe(cell);
  EXPECT_NE(find_cause(cell.first->cause_name), nullptr);
  return cell;
}

}  // namespace shardcheck::testing
