// SPDX-License-Identifier: Apache-2.0
// Runs a program: every rank executes the instructions of every step on its device, over one World.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sharded/rank_context.hpp"
#include "sharded/tap.hpp"

namespace shardcheck {

/// Looks into a run between two instructions, and may change what a rank does: how faults are planted.
class Interposer {
 public:
  virtual ~Interposer() = default;
  /// Before the first step: weight shards may be replaced.
  virtual void prepare(RankContext&) {}
  /// Before an instruction: true if the interposer computed `outputs` itself.
  virtual bool replace(RankContext&, const Instruction&, const std::vector<Tensor>& inputs,
                       std::vector<Tensor>& outputs) {
    static_cast<void>(inputs);
    static_cast<void>(outputs);
    return false;
  }
  /// After an instruction, before its outputs are tapped.
  virtual void after(RankContext&, const Instruction&, std::vector<Tensor>& outputs) {
    static_cast<void>(outputs);
  }
  /// Between the moment a value is tapped and the moment its consumers read it.
  virtual void between(RankContext&, const Instruction&, std::vector<Tensor>& outputs) {
    static_cast<void>(outputs);
  }
};

/// A value whose bytes differed between its producer and a consumer; or that a fused instruction made, and whose bytes
/// are not those that the one of its parts makes from the same inputs.
struct WiringMismatch {
  int rank = 0;
  Phase phase = Phase::prefill;
  int step = 0;
  std::string value, consumer;
  std::string part = {};  // of a fused instruction: the op that gives other bytes, and no consumer; else empty
};

/// Where a forced program could not go on, because local shapes don't fit.
struct RunEnd {
  std::string site;
  int order = 0;  // index of the instruction
  Phase phase = Phase::prefill;
  int step = 0;
  std::vector<int> ranks;
  std::string message;
};

struct RunResult {
  std::vector<Ledger> ledgers;         // by rank
  std::vector<WiringMismatch> wiring;  // in order of rank, then program
  std::int64_t wiring_checks = 0;      // hashes compared; 0: the check was not run
  std::optional<RunEnd> ended;         // forced programs only
};

struct RunOptions {
  TapSink* taps = nullptr;
  Interposer* interposer = nullptr;
  bool check_wiring = false;
  std::span<const Step> earlier{};  // not run: what is in the cache, for a trace of shapes alone
  /// Called by each rank after its weights are bound and checked for in the run: gate G0 compares the shards.
  std::function<void(RankContext&)> inspect;
  /// Called from rank 0 with the fraction of steps done.
  std::function<void(double)> progress;
};

/// `devices` has one device for all ranks, or one per rank. Throws what a rank threw, prefixed with its number; with a
/// program whose findings left shapes that don't fit, ShapeError and CommError end the run instead (RunResult::ended).
RunResult run_program(const Program& program, World& world, std::span<Device* const> devices,
                      WeightStore& weights, const RunSettings& settings,
                      std::span<const Step> steps, const RunOptions& options = {});

/// Tokens that each sequence reaches over all steps: how large its cache must be.
std::vector<std::int64_t> sequence_capacity(std::span<const Step> steps);

}  // namespace shardcheck
