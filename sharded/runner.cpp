// SPDX-License-Identifier: Apache-2.0
#include "sharded/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "model/error.hpp"
#include "sharded/collectives.hpp"
#include "sharded/comm/turn.hpp"
#include "sharded/run_parcel.hpp"

namespace shardcheck {
namespace {

/// One rank's walk through the program.
class RankRun {
 public:
  RankRun(RankContext& context, const RunOptions& options, std::vector<WiringMismatch>& mismatches)
      : context_(context), options_(options), mismatches_(mismatches) {}

  void step(const Step& step) {
    const std::vector<Instruction>& instructions = context_.program().instructions.at(step.phase);
    context_.begin_step(step);
    values_.clear();
    begin_wiring(instructions);
    last_use_ = last_uses(instructions);
    try {
      for (order_ = 0; order_ < static_cast<int>(instructions.size()); ++order_) {
        execute(instructions[static_cast<std::size_t>(order_)]);
      }
    } catch (...) {
      try {
        deliver_taps();
      } catch (...) {  // what ended the step is the cause
      }
      throw;
    }
    deliver_taps();
    end_wiring();
  }

  int order() const { return order_; }
  std::int64_t checks() const { return checks_; }

 private:
  struct Checked {
    std::int64_t producer_slot, other_slot;
    int value;
    const Instruction* consumer;  // that read it; or null, and
    const Instruction* part;      // of the fused instruction that made it: what made it again
  };

  void execute(const Instruction& instruction) {
    const NamedRange named = context_.device().range(instruction.site);
    std::vector<Tensor> inputs;
    for (const int index : instruction.inputs) inputs.push_back(input(index));
    for (std::size_t i = 0; i < inputs.size(); ++i)
      hash_input(instruction, instruction.inputs[i], inputs[i]);

    std::vector<Tensor> outputs;
    Interposer* interposer = options_.interposer;
    if (interposer == nullptr || !interposer->replace(context_, instruction, inputs, outputs)) {
      outputs = instruction.op == nullptr
                    ? std::vector<Tensor>{run_collective(instruction, context_, inputs[0])}
                    : instruction.op->run(instruction, context_, inputs);
    }
    if (interposer != nullptr) interposer->after(context_, instruction, outputs);
    if (instruction.op != nullptr) record(instruction);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const int index = instruction.outputs[i];
      values_[index] = outputs[i];
      hash_output(index, outputs[i]);
      tap(index, outputs[i]);
    }
    if (wiring_) check_parts(instruction);
    if (interposer != nullptr) {
      interposer->between(context_, instruction, outputs);
      for (std::size_t i = 0; i < outputs.size(); ++i) values_[instruction.outputs[i]] = outputs[i];
    }
    // A value is dropped after its last consumer, so that a run needs the memory of a layer, not of a model.
    for (const int index : instruction.inputs) {
      if (last_use_[index] == order_) values_.erase(index);
    }
  }

  Tensor input(int index) {
    const Value& value = context_.program().value(index);
    if (value.name == "ids") return context_.ids();
    if (value.name == "positions") return context_.position_ids();
    return values_.at(index);
  }

  static std::map<int, int> last_uses(const std::vector<Instruction>& instructions) {
    std::map<int, int> last;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      for (const int index : instructions[i].inputs) last[index] = static_cast<int>(i);
    }
    return last;
  }

  void record(const Instruction& instruction) {
    std::vector<Extent> inputs, outputs;
    for (const int index : instruction.inputs) {
      const Value& value = context_.program().value(index);
      const bool source = value.name == "ids" || value.name == "positions";
      inputs.push_back(source ? Extent{1, context_.step().tokens(), DType::i64}
                              : context_.extent(index));
    }
    for (const int index : instruction.outputs) outputs.push_back(context_.extent(index));
    const Cost cost = instruction.op->cost(instruction, context_, inputs, outputs);
    LedgerRecord entry;
    entry.site = instruction.site;
    entry.what = std::string(instruction.op->name());
    entry.dtype = context_.settings().storage;
    entry.flops = cost.flops;
    entry.moved_bytes = cost.bytes;
    entry.phase = context_.step().phase;
    entry.step = context_.step().index;
    context_.ledger().push_back(std::move(entry));
  }

  void tap(int index, const Tensor& tensor) {
    if (options_.taps == nullptr || !context_.device().has_values()) return;
    const Value& value = context_.program().value(index);
    if (!options_.taps->wants(value.name)) return;
    // Only started here: waiting would hide a missing wait of the program's own.
    tapped_.emplace_back(index, context_.device().start_read(context_.stream(), tensor));
    if (!context_.device().returns_early()) deliver_taps();
  }

  void deliver_taps() {
    for (auto& [index, read] : tapped_) {
      const Value& value = context_.program().value(index);
      const TapInfo info{value.name, context_.step().phase, context_.step().index, context_.rank(),
                         &value.layout};
      options_.taps->take(info, read->take());
    }
    tapped_.clear();
  }

  void begin_wiring(const std::vector<Instruction>& instructions) {
    checked_.clear();
    producer_slot_.clear();
    next_slot_ = 0;
    wiring_ = options_.check_wiring && context_.device().has_values();
    if (!wiring_) return;
    std::int64_t slots = 0;
    for (const Instruction& instruction : instructions) {
      slots += static_cast<std::int64_t>(instruction.inputs.size() + instruction.outputs.size());
      for (const Instruction& part : instruction.parts)
        slots += static_cast<std::int64_t>(part.outputs.size());
    }
    slots_ = context_.device().allocate(context_.stream(), DType::u64, 1, slots);
  }
  void hash_output(int index, const Tensor& tensor) {
    if (!wiring_) return;
    producer_slot_[index] = next_slot_;
    context_.device().hash(context_.stream(), tensor, slots_, next_slot_++);
  }
  void hash_input(const Instruction& consumer, int index, const Tensor& tensor) {
    if (!wiring_ || producer_slot_.find(index) == producer_slot_.end()) return;
    checked_.push_back({producer_slot_.at(index), next_slot_, index, &consumer, nullptr});
    context_.device().hash(context_.stream(), tensor, slots_, next_slot_++);
  }
  /// Runs what a fused instruction stands for, each part from what the fused one gave, and hashes it: the bits are the same.
  void check_parts(const Instruction& fused) {
    for (const Instruction& part : fused.parts) {
      std::vector<Tensor> inputs;
      for (const int index : part.inputs) inputs.push_back(input(index));
      const std::vector<Tensor> outputs = part.op->run(part, context_, inputs);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const int index = part.outputs[i];
        checked_.push_back({producer_slot_.at(index), next_slot_, index, nullptr, &part});
        context_.device().hash(context_.stream(), outputs[i], slots_, next_slot_++);
      }
    }
  }
  void end_wiring() {
    if (!wiring_) return;
    const HostTensor hashes = context_.device().to_host(context_.stream(),
                                                        slots_.col_range(0, next_slot_));
    const auto values = hashes.as<std::uint64_t>();
    for (const Checked& check : checked_) {
      ++checks_;
      if (values[static_cast<std::size_t>(check.producer_slot)] ==
          values[static_cast<std::size_t>(check.other_slot)]) {
        continue;
      }
      mismatches_.push_back({context_.rank(), context_.step().phase, context_.step().index,
                             context_.program().value(check.value).name,
                             check.consumer != nullptr ? check.consumer->site : "",
                             check.part != nullptr ? std::string(check.part->op->name()) : ""});
    }
  }

  RankContext& context_;
  const RunOptions& options_;
  std::vector<WiringMismatch>& mismatches_;
  std::map<int, Tensor> values_;
  std::vector<std::pair<int, std::unique_ptr<HostRead>>> tapped_;
  std::map<int, int> last_use_;
  int order_ = 0;
  bool wiring_ = false;
  Tensor slots_;
  std::int64_t next_slot_ = 0, checks_ = 0;
  std::map<int, std::int64_t> producer_slot_;
  std::vector<Checked> checked_;
};

/// Ranks end where the first of them can't go on.
void earliest(std::optional<RunEnd>& end, RunEnd other) {
  if (!end || other.order < end->order) {
    end = std::move(other);
  } else if (end->order == other.order) {
    end->ranks.insert(end->ranks.end(), other.ranks.begin(), other.ranks.end());
  }
}

}  // namespace

std::vector<std::int64_t> sequence_capacity(std::span<const Step> steps) {
  std::vector<std::int64_t> capacity;
  for (const Step& step : steps) {
    for (const StepSequence& sequence : step.sequences) {
      const auto index = static_cast<std::size_t>(sequence.sequence);
      if (capacity.size() <= index) capacity.resize(index + 1, 0);
      capacity[index] = std::max(capacity[index], sequence.first + sequence.count);
    }
  }
  return capacity;
}

RunResult run_program(const Program& program, World& world, std::span<Device* const> devices,
                      WeightStore& weights, const RunSettings& settings,
                      std::span<const Step> steps, const RunOptions& options) {
  const auto ranks = static_cast<std::size_t>(program.mesh.ranks());
  RunResult result;
  result.ledgers.resize(ranks);
  std::vector<std::vector<WiringMismatch>> mismatches(ranks);
  std::vector<std::int64_t> checks(ranks, 0);
  const std::vector<std::int64_t> capacity = sequence_capacity(steps);
  std::optional<TapRelay> relay;  // to the process that judges
  if (options.taps != nullptr && !world.judges()) relay.emplace(*options.taps);
  RunOptions own = options;
  if (relay) own.taps = &*relay;
  std::mutex end_mutex;
  std::optional<RunEnd> end;
  const auto note_end = [&](int rank, int order, const Step& step, const char* message) {
    const std::lock_guard lock(end_mutex);
    const std::string site = program.instructions.at(step.phase)[static_cast<std::size_t>(order)].site;
    earliest(end, RunEnd{site, order, step.phase, step.index, {rank}, message});
  };

  const auto body = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    Device& device = *devices[devices.size() == 1 ? 0 : r];
    const Turn turn(device);
    RankContext context(program, rank, device, world, weights, settings, capacity);
    for (const Step& step : options.earlier) context.remember(step);
    if (options.interposer != nullptr) options.interposer->prepare(context);
    if (options.inspect) options.inspect(context);
    RankRun run(context, own, mismatches[r]);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      try {
        run.step(steps[i]);
      } catch (const ShapeError& error) {
        note_end(rank, run.order(), steps[i], error.what());
        throw;
      }
      if (rank == 0 && options.progress) {
        options.progress(static_cast<double>(i + 1) / static_cast<double>(steps.size()));
      }
    }
    context.stream().synchronize();
    checks[r] = run.checks();
    result.ledgers[r] = std::move(context.ledger());
  };

  std::string stopped;
  try {
    world.run(body);
  } catch (const ShapeError&) {
    if (!program.forced_shapes) throw;
  } catch (const CommError& error) {
    if (!program.forced_shapes) throw;
    stopped = error.what();
  }
  std::string mine;
  for (int rank = 0; rank < program.mesh.ranks() && !world.judges(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (!world.runs(rank)) continue;
    mine = pack_part({rank, result.ledgers[r], mismatches[r], checks[r], end}, relay ? &*relay : nullptr);
  }
  for (const std::string& bytes : world.gather(std::move(mine))) {
    if (bytes.empty()) continue;  // this process's own
    RankPart part = unpack_part(bytes, program, options.taps);
    const auto r = static_cast<std::size_t>(part.rank);
    result.ledgers[r] = std::move(part.ledger);
    mismatches[r] = std::move(part.wiring);
    checks[r] = part.wiring_checks;
    if (part.ended) earliest(end, std::move(*part.ended));
  }
  if (!stopped.empty() && !end) end = RunEnd{"", 0, steps[0].phase, steps[0].index, {}, stopped};
  if (end) std::sort(end->ranks.begin(), end->ranks.end());
  result.ended = end;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    result.wiring.insert(result.wiring.end(), mismatches[rank].begin(), mismatches[rank].end());
    result.wiring_checks += checks[rank];
  }
  return result;
}

}  // namespace shardcheck
