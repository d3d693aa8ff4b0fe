// SPDX-License-Identifier: Apache-2.0
// graph x plan x mesh: the list of instructions that every rank executes, and the layout of every value.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "sharded/graph.hpp"
#include "sharded/layout.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

class Registry;
class Op;

/// Which of a run's dtypes a value is stored in. `accumulate`: a norm's statistic, whatever storage and wire are.
enum class ValueDType { storage, wire, accumulate };
inline DType dtype_of(ValueDType kind, DType storage, DType wire) {
  switch (kind) {
    case ValueDType::storage:
      return storage;
    case ValueDType::wire:
      return wire;
    case ValueDType::accumulate:
      return accumulate_dtype(storage);
  }
  return storage;
}
/// What the rows of a value are: the step's tokens, or the positions that attention read from the cache.
enum class ValueRows { tokens, cache };

/// A value of the program: one tap, one buffer per rank.
struct Value {
  std::string name;
  Layout layout;
  ValueDType dtype = ValueDType::storage;
  ValueRows rows = ValueRows::tokens;
  std::int64_t window = 0;  // of a cache value: how far back its rows reach; 0: to the start
};

/// Rows of a value that a rank holds in the last of `steps`, which are all steps so far.
Ranges held_rows(const Value& value, const Mesh& mesh, int rank, std::span<const Step* const> steps);

/// One op or collective of the program.
struct Instruction {
  const Op* op = nullptr;            // null: a collective
  CollectiveStep collective;         // if op is null
  std::vector<int> axes;             // of the collective, indices into the mesh
  std::string site;                  // tap name of the first output
  std::string module;                // path whose weights it uses, or that owns its output
  std::vector<int> inputs, outputs;  // indices into Program::values
  Attributes attributes;             // of the node
  bool adds_bias = false;            // linear: the bias is added before the one rounding
  std::vector<Instruction> parts;    // of a fused one: the instructions that it stands for, in order
};

/// A rule that a plan broke. With --force the required placement is assumed and the program goes on.
struct Finding {
  std::string rule;  // "partial_into_nonlinear"
  std::string op;    // "rms_norm"
  std::string tap;   // value that is placed wrongly
  std::string axis;
  std::string met, required;  // placements
  std::string fix;            // "layers.0.mlp.down_proj.out": "all_reduce(sum, tp)"
  std::string sentence;       // the rule in words, for people
};

struct Program {
  Config config;
  Mesh mesh;
  ResolvedPlan plan;
  std::vector<Module> modules;
  std::vector<Value> values;  // shared by both phases where the plan doesn't differ
  std::map<Phase, std::vector<Instruction>> instructions;
  std::map<Phase, int> result;  // index of the logits
  std::vector<Finding> findings;
  bool forced_shapes = false;  // a finding left local shapes that may not fit

  const Value& value(int index) const { return values[static_cast<std::size_t>(index)]; }
  const Module* find_module(std::string_view path) const;  // null if the path owns no weights
};

/// Builds the program of a model under a resolved plan. Placement violations are collected in `findings`; nothing is
/// thrown for them. Every op of the graph must be in `ops`.
Program build_program(const Model& model, const ResolvedPlan& plan, const Registry& ops);

}  // namespace shardcheck
