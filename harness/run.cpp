// SPDX-License-Identifier: Apache-2.0
#include "harness/run.hpp"

namespace shardcheck {

const TapValue* StepTaps::find(std::string_view name) const {
  const auto found = index.find(std::string(name));
  return found == index.end() ? nullptr : &values[found->second];
}

void StepTaps::add(TapValue value) {
  index[value.name] = values.size();
  values.push_back(std::move(value));
}

TapCollector::TapCollector(const Program& program, const RunSettings& settings,
                           std::span<const Step> steps) {
  run_.mesh = program.mesh;
  run_.storage = settings.storage;
  run_.wire = settings.wire;
  run_.reduction = settings.reduction;
  const auto ranks = static_cast<std::size_t>(program.mesh.ranks());
  for (const Step& step : steps) {
    StepTaps taps;
    taps.step = step;
    for (const Instruction& instruction : program.instructions.at(step.phase)) {
      for (const int output : instruction.outputs) {
        const Value& value = program.value(output);
        taps.add({value.name, value.layout, std::vector<HostTensor>(ranks)});
      }
    }
    run_.steps.push_back(std::move(taps));
  }
}

void TapCollector::take(const TapInfo& info, HostTensor value) {
  const std::lock_guard lock(mutex_);
  for (StepTaps& taps : run_.steps) {
    if (taps.step.phase != info.phase || taps.step.index != info.step) continue;
    TapValue& slot = taps.values[taps.index.at(std::string(info.name))];
    // Replicas are kept once: with many ranks they would be most of the memory.
    for (const HostTensor& other : slot.ranks) {
      if (!other.shape().empty() && other.bitwise_equal(value)) {
        value = other;
        break;
      }
    }
    slot.ranks[static_cast<std::size_t>(info.rank)] = std::move(value);
    return;
  }
}

}  // namespace shardcheck
