// SPDX-License-Identifier: Apache-2.0
// Which value of the unsharded program a value of a sharded one stands for. The sharded program has more of them:
// partial sums, the stages of a reduction, gathered inputs, a norm's statistic.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "sharded/program.hpp"

namespace shardcheck {

struct Counterpart {
  std::string tap;  // of the unsharded program; empty: it has no such value, and replicas alone can be compared
  std::string without;  // "X.bias": a stage before the bias of X, so the tap less that; else empty
  bool square_sum = false;  // the sum of squares over the tap's features
};

class Counterparts {
 public:
  Counterparts(const Program& sharded, const Program& whole, Phase phase);
  const Counterpart& of(int value) const { return counterparts_.at(value); }
  /// The instruction of the sharded program that makes a value; null for ids and positions.
  const Instruction* producer(int value) const;

 private:
  Counterpart find(const Value& value) const;
  /// What a module reads in the unsharded program; empty if it reads nothing that has a name.
  std::string input_of(std::string_view module) const;

  std::map<std::string, const Instruction*, std::less<>> whole_;  // by the value it makes
  const Program& whole_program_;
  std::map<int, Counterpart> counterparts_;
  std::map<int, const Instruction*> producers_;
};

}  // namespace shardcheck
