// SPDX-License-Identifier: Apache-2.0
// `shardcheck prove`: is the sharded program the unsharded one? Both run over a prime field, where sums are exact and
// every other function is random, and every tap is compared without a tolerance.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/verify.hpp"
#include "model/model.hpp"
#include "sharded/plan.hpp"
#include "sharded/runner.hpp"

namespace shardcheck {

struct ProveOptions {
  std::vector<Mesh> meshes;
  std::vector<Phase> phases;
  bool shrink = true;  // make dimensions smaller that no rule needs as large (harness/proof/shrink.hpp)
  std::optional<int> seeds;  // none: the fewest that push the chance of a false "equal" below 2^-40
  bool force = false;        // run a plan that breaks placement rules
  bool counterexample = true;  // look for one where the programs differ
  /// Planted faults, in the sharded programs of more than one rank only; null: none. The interposer is asked for each
  /// run: in DType::field, and in f64 where a difference is confirmed and made readable.
  std::function<std::unique_ptr<Interposer>(const Program&, const RunSettings&, Phase)> fault;
  std::function<void(ResolvedPlan&)> edit_plan;
  std::function<void(Program&)> edit_program;
  /// What is going on, and the fraction done in [0, 1].
  std::function<void(const std::string& what, double done)> progress;
};

/// equal: no tap differs, and chance would have hidden a difference with a probability below the stated bound.
/// wrong: a tap differs, in f64 too. unproven: it differs over the field alone (the programs use an identity that holds
/// for numbers and not for random functions), or the bound is too weak.
enum class ProofVerdict { equal, wrong, unproven };
std::string_view name(ProofVerdict verdict);

/// The first tap in program order, in the first step, whose value is another than the unsharded program's.
struct FirstDifference {
  std::string tap;
  Phase phase = Phase::prefill;
  int step = 0;            // of its phase
  std::vector<int> ranks;  // whose value is wrong in this step or a later one
  bool all_ranks = false;
  std::int64_t row = -1, feature = -1;  // in the whole value; -1: not an element, see `problem`
  std::string problem;                  // "rank 1 has [4, 3], its part is [4, 6]"; else empty
};

/// The first wrong tap in f64, with small integers for the weights and for what its op reads, on the smallest shape
/// that shows it: a row's stretch of the whole value and of each rank's share.
struct Counterexample {
  Config shape;
  std::string tap, placement;  // "layers.0.mlp.down_proj", "R"
  std::string op;              // "linear", "all_reduce(sum, tp)"
  bool integers = false;  // false: what the op reads comes from the whole network and is shown as it is
  Phase phase = Phase::prefill;
  int step = 0;
  std::int64_t row = 0, first_feature = 0,
               features = 0;  // `features` of the whole value; whole.size() are shown
  std::vector<double> whole;
  struct Share {
    int rank = 0;
    std::vector<std::optional<double>> values;  // like `whole`; none: the rank doesn't hold this element
  };
  std::vector<Share> shares;
};

struct ProveCell {
  Mesh mesh;
  Phase phase = Phase::prefill;
  ProofVerdict verdict = ProofVerdict::unproven;
  double log2_chance = 0.0;  // of a false "equal", over all seeds
  int seeds = 0;             // run
  Config shape;              // the model that was run
  bool shrunk = false;
  std::int64_t taps = 0;  // values compared, over steps and seeds
  std::optional<FirstDifference> first;
  std::optional<Counterexample> counterexample;
  std::string reason;  // of unproven: a sentence
};

struct ProveReport {
  std::string model, plan;
  std::vector<Finding> findings;  // placement rules that the plan breaks; without force nothing was run
  bool ran = true;
  std::vector<ProveCell> cells;  // by mesh, then phase
  bool passed() const;           // ran, and every cell is equal
};

/// Reads shapes and no weights. Throws InputError before anything runs if a mesh can't work.
ProveReport prove(const Model& model, const Plan& plan, const ProveOptions& options,
                  const VerifyParts& parts);

/// A line per cell, differences in words with their counter-example, and a last line that counts the verdicts.
std::string prove_text(const ProveReport& report);
/// Schema "shardcheck.prove/1".
std::string prove_json(const ProveReport& report);

}  // namespace shardcheck
