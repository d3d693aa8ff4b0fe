// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/fault.hpp"

namespace shardcheck {
namespace {

class PlantedInterposer final : public Interposer {
 public:
  explicit PlantedInterposer(std::shared_ptr<const Planted> planted)
      : planted_(std::move(planted)) {}
  void prepare(RankContext& context) override {
    if (planted_->prepare) planted_->prepare(context);
  }
  bool replace(RankContext& context, const Instruction& instruction,
               const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) override {
    return planted_->replace && planted_->replace(context, instruction, inputs, outputs);
  }
  void after(RankContext& context, const Instruction& instruction,
             std::vector<Tensor>& outputs) override {
    if (planted_->after) planted_->after(context, instruction, outputs);
  }
  void between(RankContext& context, const Instruction& instruction,
               std::vector<Tensor>& outputs) override {
    if (planted_->between) planted_->between(context, instruction, outputs);
  }

 private:
  std::shared_ptr<const Planted> planted_;
};

}  // namespace

std::string_view name(FaultLayer layer) {
  switch (layer) {
    case FaultLayer::plan:
      return "plan";
    case FaultLayer::partition:
      return "partition";
    case FaultLayer::section:
      return "section";
    case FaultLayer::loader:
      return "loader";
    case FaultLayer::execution:
      return "execution";
    case FaultLayer::collective:
      return "collective";
    case FaultLayer::arithmetic:
      return "arithmetic";
    case FaultLayer::precision:
      return "precision";
  }
  return "?";
}

std::string_view name(FaultGate gate) {
  switch (gate) {
    case FaultGate::lint:
      return "lint";
    case FaultGate::prove:
      return "prove";
    case FaultGate::f64:
      return "f64";
    case FaultGate::f32:
      return "f32";
    case FaultGate::bf16:
      return "bf16";
    case FaultGate::fp16:
      return "fp16";
  }
  return "?";
}

std::vector<FaultGate> jobs_of(const Fault& fault) {
  if (!fault.jobs.empty()) return fault.jobs;
  const bool declared = fault.layer == FaultLayer::plan || fault.layer == FaultLayer::partition ||
                        fault.layer == FaultLayer::section;
  const bool moves = declared || fault.layer == FaultLayer::loader ||
                     fault.layer == FaultLayer::execution || fault.layer == FaultLayer::collective;
  std::vector<FaultGate> jobs;
  for (const FaultGate gate : kFaultGates) {
    const bool numbers = gate != FaultGate::lint && gate != FaultGate::prove;
    if (numbers || (gate == FaultGate::prove ? moves : declared)) jobs.push_back(gate);
  }
  return jobs;
}

std::unique_ptr<Interposer> interposer_of(std::shared_ptr<const Planted> planted) {
  return std::make_unique<PlantedInterposer>(std::move(planted));
}

}  // namespace shardcheck
