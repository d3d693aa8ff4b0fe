// SPDX-License-Identifier: Apache-2.0
// Private to diagnoses: the families of hypotheses, one file each. A new one is one file and one line in kFamilies.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/diagnose/failed_op.hpp"

namespace shardcheck {

/// A cause that explains one rank's error.
struct Explanation {
  std::string_view cause;  // a name of kCauses
  std::string sentence;    // with the evidence
  std::optional<Residual> residual;
};

/// What a family found out about one rank.
class Explanations {
 public:
  explicit Explanations(const RankCase& about) : case_(about) {}

  /// Keeps the cause if the hypothesis explains the error. The first of a cause is kept: state the likeliest first.
  bool test(std::string_view cause, const LocalValue& hypothesis, std::string sentence);
  /// A cause whose evidence isn't a recomputation.
  void add(std::string_view cause, std::string sentence);
  bool has(std::string_view cause) const;
  bool empty() const { return found_.empty(); }
  const std::vector<Explanation>& all() const { return found_; }

 private:
  const RankCase& case_;
  std::vector<Explanation> found_;
};

using HypothesisFamily = void (*)(const RankCase&, Explanations&);

// One per file of this folder.
void explain_not_finite(const RankCase& rank, Explanations& found);  // never written, not finite
void explain_sums(const RankCase& rank, Explanations& found);     // which ranks' shares were summed
void explain_factors(const RankCase& rank, Explanations& found);  // off by a factor or a constant
void explain_operands(const RankCase& rank,
                      Explanations& found);  // bias and residual: counted wrongly or missing
void explain_relocated(const RankCase& rank,
                       Explanations& found);  // blocks, rows and features in another place
void explain_parts(const RankCase& rank, Explanations& found);  // parts joined in another order, borders moved
void explain_stale(const RankCase& rank, Explanations& found);  // values of other steps, layers and buffers
void explain_tokens(const RankCase& rank, Explanations& found);  // sums over rows of different tokens
void explain_weights(const RankCase& rank, Explanations& found);  // products with another weight
void explain_lookups(const RankCase& rank, Explanations& found);  // rows of tables and caches
void explain_norms(const RankCase& rank, Explanations& found);    // statistics, divisors, epsilons
void explain_positions(const RankCase& rank, Explanations& found);  // rope
void explain_attention(const RankCase& rank, Explanations& found);  // masks, scales, heads
void explain_functions(const RankCase& rank, Explanations& found);  // activations and products
void explain_precision(const RankCase& rank, Explanations& found);  // coarser formats

/// explain_factors for whatever op it is.
void explain_any_factor(const RankCase& rank, Explanations& found);

inline constexpr HypothesisFamily kFamilies[] = {
    explain_not_finite, explain_sums,      explain_factors,   explain_operands,  explain_relocated,
    explain_parts,      explain_stale,     explain_tokens,    explain_weights,   explain_lookups,
    explain_norms,      explain_positions, explain_attention, explain_functions, explain_precision};

}  // namespace shardcheck
