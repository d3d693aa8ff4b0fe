// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/wrong_shares.hpp"

#include <algorithm>
#include <memory>

#include "model/error.hpp"
#include "sharded/comm/worlds.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

/// An op run again on one rank alone, on the unsharded values.
class WrongShares {
 public:
  WrongShares(const ProofRun& sharded, const ProofRun& whole, WeightStore& weights,
              const ResolvedPlan& plan, Device& device)
      : program_(*sharded.program),
        sharded_(sharded),
        whole_(whole),
        weights_(weights),
        device_(device),
        world_(make_solo_world(program_.mesh)) {
    program_.plan = plan;
  }

  std::vector<int> find(const RunDifference& difference, const Counterparts& counterparts,
                        std::span<const Step* const> steps) {
    const Instruction* made = counterparts.producer(difference.value);
    if (made == nullptr || made->op == nullptr) return {};
    for (const int input : made->inputs) {
      if (counterparts.producer(input) != nullptr && counterparts.of(input).tap.empty()) return {};
    }
    std::vector<int> wrong;
    const TapValue& tap = *sharded_.taps.steps[difference.step].find(difference.tap);
    for (const int rank : difference.ranks) {
      if (!same_numbers(share(*made, difference, counterparts, steps, rank),
                        tap.ranks[static_cast<std::size_t>(rank)])) {
        wrong.push_back(rank);
      }
    }
    return wrong;
  }

 private:
  /// Empty where the plan's weights don't fit the program's values.
  HostTensor share(const Instruction& made, const RunDifference& difference,
                   const Counterparts& counterparts, std::span<const Step* const> steps, int rank) {
    const DType dtype = weights_.storage();
    std::vector<Step> run;
    for (const Step* step : steps) run.push_back(*step);
    RankContext context(program_, rank, device_, *world_, weights_, {dtype, dtype, {}},
                        sequence_capacity(run));
    for (const Step* step : steps) context.begin_step(*step);
    std::vector<Tensor> inputs;
    for (const int input : made.inputs) {
      const Value& value = program_.value(input);
      if (counterparts.producer(input) == nullptr) {
        inputs.push_back(value.name == "ids" ? context.ids() : context.position_ids());
        continue;
      }
      const HostTensor truth = expected_value(counterparts.of(input),
                                              whole_.taps.steps[difference.step], weights_);
      inputs.push_back(device_.adopt(context.stream(), part_of(truth, context.rows_of(input),
                                                               value.layout.feature_ranges(rank))));
    }
    try {
      const NamedRange named = device_.range(made.site);
      const std::vector<Tensor> outputs = made.op->run(made, context, inputs);
      const auto which = std::find(made.outputs.begin(), made.outputs.end(), difference.value);
      return device_.to_host(context.stream(),
                             outputs[static_cast<std::size_t>(which - made.outputs.begin())]);
    } catch (const ShapeError&) {
      return {};
    }
  }

  Program program_;  // under the plan as it is meant
  const ProofRun& sharded_;
  const ProofRun& whole_;
  WeightStore& weights_;
  Device& device_;
  const std::unique_ptr<World> world_;
};

}  // namespace

std::vector<int> wrong_shares(const RunDifference& difference, const Counterparts& counterparts,
                              std::span<const Step* const> steps, const ProofRun& sharded,
                              const ProofRun& whole, WeightStore& weights, const ResolvedPlan& plan,
                              Device& device) {
  return WrongShares(sharded, whole, weights, plan, device).find(difference, counterparts, steps);
}

}  // namespace shardcheck
