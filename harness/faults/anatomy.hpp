// SPDX-License-Identifier: Apache-2.0
// Where things are in a program, by what they do and never by name: how faults find places in models and plans that
// nobody has seen.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/faults/fault.hpp"

namespace shardcheck::faults {

using Where = std::function<bool(const Program&, const Instruction&)>;

/// Sites of the instructions that fit.
std::vector<std::string> sites(const Program& program, Phase phase, const Where& where);
/// Paths of the modules that fit, each once, in the order of the program.
std::vector<std::string> module_paths(const Program& program,
                                      const std::function<bool(const Program&, const Module&)>& where);

bool is_op(const Instruction& instruction, std::string_view op);
bool is_norm(const Instruction& instruction);  // over a whole row
bool is_collective(const Instruction& instruction, CollectiveStep::Kind kind);
bool sums(const Instruction& instruction);  // an all_reduce or reduce_scatter of sums

/// The instruction with this site; null if the phase has none.
const Instruction* at_site(const Program& program, Phase phase, std::string_view site);
const Instruction* producer(const Program& program, Phase phase, int value);
std::vector<const Instruction*> readers(const Program& program, Phase phase, int value);
const Module* module_of(const Program& program, const Instruction& instruction);

/// An op that makes a value partial: a row-parallel linear, a vocabulary-parallel embedding.
bool makes_partial(const Program& program, const Instruction& instruction);
/// The sum over ranks that reads this instruction's output; null if there is none.
const Instruction* sum_of(const Program& program, Phase phase, const Instruction& instruction);

/// Which ranks of a program hold only rows, or only columns, of a module's weight.
bool cut_by_rows(const Program& program, const Module& module);
bool cut_by_columns(const Program& program, const Module& module);
Ranges rows_of(const Program& program, const Module& module, int rank);
Ranges cols_of(const Program& program, const Module& module, int rank);

/// The site of the op that uses a module's weight, which its tap is named after.
std::string site_of(const Program& program, Phase phase, const Module& module);
/// What a plan's step at a module's output gives: its `.reduced` where a bias follows.
std::string after_steps(const Program& program, Phase phase, const std::string& module);

std::vector<int> everyone(const Program& program);
/// Ranks that fit.
std::vector<int> ranks_where(const Program& program, const std::function<bool(int)>& where);
/// A rank whose coordinates differ from `rank`'s on the first axis of more than one rank: `by` further, around.
int neighbour(const Program& program, int rank, int by = 1);

/// A planted fault that edits an instruction's outputs on some ranks, before they are tapped.
using Edit = std::function<void(RankContext&, const Instruction&, std::vector<Tensor>& outputs)>;
Planted change_output(const std::string& site, std::vector<int> ranks, Edit edit);
/// One that executes an instruction itself on some ranks.
using Execute = std::function<std::vector<Tensor>(RankContext&, const Instruction&,
                                                  const std::vector<Tensor>& inputs)>;
Planted execute_instead(const std::string& site, std::vector<int> ranks, Execute execute);
/// One that hands an instruction other inputs on some ranks, and lets it do its own work.
using Inputs = std::function<void(RankContext&, const Instruction&, std::vector<Tensor>& inputs)>;
Planted change_inputs(const std::string& site, std::vector<int> ranks, Inputs change);

/// What an instruction does by itself.
std::vector<Tensor> run_plainly(RankContext& context, const Instruction& instruction,
                                const std::vector<Tensor>& inputs);

bool holds(const std::vector<int>& ranks, int rank);

}  // namespace shardcheck::faults
