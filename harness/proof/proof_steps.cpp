// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/proof_steps.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "harness/inputs.hpp"
#include "model/philox.hpp"

namespace shardcheck {
namespace {

/// Sequences and how they are taken through the phases.
class ProofInputs {
 public:
  explicit ProofInputs(const Program& program) : program_(program) {
    const Config& config = program.config;
    std::int64_t window = 0;
    for (const std::optional<std::int64_t>& w : config.windows)
      window = std::max(window, w.value_or(0));
    const bool learned = config.rope.type == RopeConfig::Type::none;
    longest_ = learned ? config.max_positions : std::numeric_limits<std::int64_t>::max();
    const Program* const programs[] = {&program};
    const std::vector<std::int64_t> borders = border_ids(config, programs);
    lengths_.assign(static_cast<std::size_t>(std::max<std::int64_t>(2, sequence_ranks() + 1)),
                    std::min<std::int64_t>(3, longest_));
    lengths_[0] = std::max(kShortest, std::min(kMostProofTokens, 2 * window + kDecoded + 1));
    lengths_[0] = std::min(lengths_[0], longest_);
    lengths_[1] = std::min<std::int64_t>(5, longest_);
    while (tokens() < std::ssize(borders) || cuts_first_rows_evenly()) lengthen();
    for (std::size_t s = 0; s < lengths_.size(); ++s)
      prompts_.push_back(lengths_[s] - decoded(s, lengths_[s]));
    const RandomStream random(1, "ids");
    std::uint64_t next = 0;
    for (const std::int64_t length : lengths_) {
      std::vector<std::int64_t>& ids = sequences_.emplace_back();
      for (std::int64_t i = 0; i < length; ++i, ++next) {
        ids.push_back(next < borders.size()
                          ? borders[next]
                          : static_cast<std::int64_t>(
                                random.below(static_cast<std::uint64_t>(config.vocab_size), next)));
      }
    }
  }

  /// The prompts, what is left but for one token, and that one.
  std::vector<Step> prefill() const {
    std::vector<std::int64_t> done(lengths_.size(), 0), counts = lengths_;
    std::vector<Step> steps{step(Phase::prefill, 0, done, prompts_)};
    for (std::size_t s = 0; s < counts.size(); ++s) counts[s] -= done[s];
    const std::int64_t last = std::min<std::int64_t>(1, counts[0]);
    counts[0] -= last;
    steps.push_back(step(Phase::prefill, 1, done, counts));
    std::fill(counts.begin(), counts.end(), 0);
    counts[0] = last;
    steps.push_back(step(Phase::prefill, 2, done, counts));
    return steps;
  }

  /// The prompts, then a token of each sequence as long as there are any: of all, of the first two, of the first.
  std::vector<Step> decode() const {
    std::vector<std::int64_t> done(lengths_.size(), 0);
    std::vector<Step> steps{step(Phase::prefill, 0, done, prompts_)};
    for (int index = 0; done != lengths_; ++index) {
      std::vector<std::int64_t> counts;
      for (std::size_t s = 0; s < done.size(); ++s) counts.push_back(done[s] < lengths_[s] ? 1 : 0);
      steps.push_back(step(Phase::decode, index, done, counts));
    }
    return steps;
  }

 private:
  static constexpr std::int64_t kDecoded = 3, kShortest = 8;

  std::int64_t tokens() const {
    return std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0});
  }
  static std::int64_t decoded(std::size_t sequence, std::int64_t length) {
    const std::int64_t wanted = sequence == 0 ? kDecoded : sequence == 1 ? 2 : 1;
    return std::min(wanted, length - 1);
  }

  /// One token more of the second sequence; where learned positions leave no room, of another or a new one.
  void lengthen() {
    for (std::size_t s = 1; s < lengths_.size(); ++s) {
      if (lengths_[s] == longest_) continue;
      ++lengths_[s];
      return;
    }
    lengths_.push_back(1);
  }

  /// Some axis of the mesh cuts the rows of the first step into equal parts.
  bool cuts_first_rows_evenly() const {
    std::int64_t rows = tokens();
    for (std::size_t s = 0; s < lengths_.size(); ++s) rows -= decoded(s, lengths_[s]);
    return std::any_of(
        program_.mesh.axes.begin(), program_.mesh.axes.end(),
        [rows](const Mesh::Axis& axis) { return axis.size > 1 && rows % axis.size == 0; });
  }

  /// Ranks of the axes along which the plan cuts whole sequences.
  std::int64_t sequence_ranks() const {
    std::set<std::string> axes;
    for (const auto& [phase, points] : program_.plan.points) {
      for (const auto& [point, steps] : points) {
        for (const CollectiveStep& step : steps) {
          const bool cuts = step.dim == PlanDim::sequence || step.concat == PlanDim::sequence;
          if (cuts) axes.insert(step.axes.begin(), step.axes.end());
        }
      }
    }
    std::int64_t ranks = 1;
    for (const std::string& axis : axes)
      ranks *= program_.mesh.axes[static_cast<std::size_t>(program_.mesh.axis_index(axis))].size;
    return ranks;
  }

  Step step(Phase phase, int index, std::vector<std::int64_t>& done,
            const std::vector<std::int64_t>& counts) const {
    Step result{phase, index, {}, {}};
    for (std::size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] == 0) continue;
      result.sequences.push_back({static_cast<std::int64_t>(s), done[s], counts[s]});
      const auto from = sequences_[s].begin() + done[s];
      result.ids.insert(result.ids.end(), from, from + counts[s]);
      done[s] += counts[s];
    }
    return result;
  }

  const Program& program_;
  std::int64_t longest_ = 0;
  std::vector<std::int64_t> lengths_, prompts_;  // by sequence; without what decode takes one by one
  Sequences sequences_;
};

}  // namespace

std::map<Phase, std::vector<Step>> proof_steps(const Program& program) {
  const ProofInputs inputs(program);
  return {{Phase::prefill, inputs.prefill()}, {Phase::decode, inputs.decode()}};
}

}  // namespace shardcheck
