// SPDX-License-Identifier: Apache-2.0
// A fault: a small object that changes one thing of a correct program - the plan, a partition, a loader's slice, an op's
// execution on some ranks, a collective - and says where that must be found. `shardcheck faults` plants one at a time.
//
// A fault of your own is one file in this folder that fills a Fault, its declaration in kinds.hpp, and one line in
// catalogue.cpp.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sharded/program.hpp"
#include "sharded/rank_context.hpp"
#include "sharded/runner.hpp"

namespace shardcheck {

/// What a fault changes. It decides whose job it is to find it, see jobs_of.
enum class FaultLayer {
  plan,        // a step or a cut of the plan: lint sees it without numbers
  partition,   // the ranges that ranks hold
  section,     // how a fused tensor's sections are cut
  loader,      // the slice that a rank loads, in a program that says otherwise
  execution,   // what an op does on some ranks: which data it reads, in which order
  collective,  // what an exchange does
  arithmetic,  // which numbers an op computes, and no prime field has them
  precision    // how numbers are rounded
};
std::string_view name(FaultLayer layer);

/// Ways to find a fault, in the order they are printed. The last four are runs of `verify` in that storage format.
enum class FaultGate { lint, prove, f64, f32, bf16, fp16 };
inline constexpr FaultGate kFaultGates[] = {FaultGate::lint, FaultGate::prove, FaultGate::f64,
                                            FaultGate::f32,  FaultGate::bf16,  FaultGate::fp16};
std::string_view name(FaultGate gate);

/// Where a fault is planted: a place of the program, and the rank that does it wrong (whose meaning is the fault's).
struct Spot {
  std::string place;  // a site of an instruction, or a module's path
  int rank = 0;
  Phase phase = Phase::prefill;
};

/// A value and the ranks that have it wrong.
struct WrongTap {
  std::string tap;
  std::vector<int> ranks;
};

/// One fault at one spot. Functions that are empty change nothing; those with a RankContext are called from every rank's
/// thread, as the members of Interposer that they are named after. One object serves one run: it may remember things.
struct Planted {
  std::function<void(ResolvedPlan&)> edit_plan;
  std::function<void(Program&)> edit_program;
  std::function<void(RankContext&)> prepare;
  std::function<bool(RankContext&, const Instruction&, const std::vector<Tensor>& inputs,
                     std::vector<Tensor>& outputs)>
      replace;
  std::function<void(RankContext&, const Instruction&, std::vector<Tensor>&outputs)> after, between;
  /// The first value that is wrong though what it was computed from is right: what verify must name.
  WrongTap first;
  /// The first value that differs from the unsharded program's, or from a rank's share of it: what prove must name. None:
  /// the same.
  std::optional<WrongTap> differs = std::nullopt;
};

struct Fault {
  std::string name = {};    // "bias_on_every_rank"
  char kind = '?';          // A to O: docs/faults.md
  std::string source = {};  // the public report it is modelled on: project and number
  std::string what = {};    // one sentence
  FaultLayer layer = FaultLayer::execution;
  std::string cause = {};  // what a diagnosis must say, harness/diagnose/causes.hpp
  std::string rule = {};  // what lint must say, sharded/placement_rule_names.hpp; empty unless lint's job; "|" between several
  /// Gates whose job it is, where the layer alone doesn't say; see jobs_of.
  std::vector<FaultGate> jobs = {};
  Phase phase = Phase::prefill;  // of the run that shows it; a decode run has a prefill first
  bool any_rank = true;          // false: the fault doesn't depend on Spot::rank
  /// Shipped plan that has the places; empty: whatever plan the table is made for.
  std::string plan = {};
  /// Places of a correct program where it can be planted, in program order.
  std::function<std::vector<std::string>(const Program&, Phase)> places = {};
  /// The fault at this spot; nothing where it can't be planted there (a neighbour that doesn't exist, ...).
  std::function<std::optional<Planted>(const Program&, const Spot&)> plant = {};
};

/// Gates that must find a fault: those it names itself, else by its layer. Lint: plan, partition, section. Prove: those,
/// loader, execution and collective. Numbers in f64, f32, bf16, fp16: all.
std::vector<FaultGate> jobs_of(const Fault& fault);

/// A fault as what run_program calls.
std::unique_ptr<Interposer> interposer_of(std::shared_ptr<const Planted> planted);

/// All faults, by kind.
std::vector<Fault> fault_catalogue();

}  // namespace shardcheck
