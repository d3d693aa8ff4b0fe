// SPDX-License-Identifier: Apache-2.0
#include "harness/wiring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "harness/diagnose/weight_shard.hpp"
#include "sharded/fusion.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

/// The same part of the value: equal ranges of features and tokens, and not a share of a sum.
bool same_part(const TapValue& value, const Value& placed, const Mesh& mesh,
               std::span<const Step* const> steps, int a, int b) {
  const std::vector<int> at = mesh.coordinates(a), bt = mesh.coordinates(b);
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    if (at[axis] != bt[axis] && value.layout.placements[axis].is_partial()) return false;
  }
  return value.layout.feature_ranges(a) == value.layout.feature_ranges(b) &&
         held_rows(placed, mesh, a, steps) == held_rows(placed, mesh, b, steps);
}

bool equal_bits(const TapValue& value, int a, int b) {
  return value.ranks[static_cast<std::size_t>(a)].bitwise_equal(
      value.ranks[static_cast<std::size_t>(b)]);
}

/// The first value that a module's weight or bias goes into, and its place in the program.
std::pair<std::string, int> first_use(const Program& program, const Module& module, bool bias) {
  const std::vector<const Instruction*> instructions = unfused(program, Phase::prefill);
  const auto found = std::find_if(
      instructions.begin(), instructions.end(), [&](const Instruction* instruction) {
        if (instruction->op == nullptr || instruction->module != module.path) return false;
        if (instruction->op->name() == "rms_statistic") return false;  // sums squares, and uses no weight
        return !bias || module.kind == ModuleKind::norm || instruction->adds_bias ||
               instruction->op->name() == "bias";
      });
  return {found == instructions.end() ? module.path : (*found)->site,
          static_cast<int>(found - instructions.begin())};
}

/// Ranks that are alike, together; in order of their first.
template <typename Alike>
std::vector<std::vector<int>> classes(const std::vector<int>& ranks, Alike alike) {
  std::vector<std::vector<int>> found;
  for (const int rank : ranks) {
    const auto mine = std::find_if(found.begin(), found.end(), [&](const std::vector<int>& group) {
      return alike(group.front(), rank);
    });
    if (mine == found.end()) {
      found.push_back({rank});
    } else {
      mine->push_back(rank);
    }
  }
  return found;
}

void describe_replicas(WiringFault& fault, const std::vector<int>& others) {
  fault.sentence = fmt::format(
      "replicas differ: rank {} has other bits than rank {}, which holds the same part",
      fmt::join(fault.ranks, ", "), fmt::join(others, ", "));
}

/// Rows [first, first + n) of a dense tensor as bytes.
std::span<const std::byte> row_bytes(const HostTensor& tensor, std::int64_t first, std::int64_t n) {
  const auto stride = static_cast<std::size_t>(tensor.cols()) * element_size(tensor.dtype());
  return {tensor.data() + static_cast<std::size_t>(first) * stride,
          static_cast<std::size_t>(n) * stride};
}

/// Empty, or what is wrong with a rank's rows of a cache value: they must be, for each sequence of the step in order, the
/// rows of `source` at the positions that a query may see - those that this rank held, in the steps up to this one. A
/// position that was written again counts once, for whoever wrote it last.
std::string cache_problem(const TapValue& read, const std::string& source, std::int64_t window,
                          const TapRun& run, std::size_t s, int rank) {
  struct Origin {
    const HostTensor* part;  // of this rank
    std::int64_t row;        // of the part; -1: another rank's
  };
  const HostTensor& got = read.ranks[static_cast<std::size_t>(rank)];
  std::int64_t row = 0;
  for (const StepSequence& sequence : run.steps[s].step.sequences) {
    const Range seen = visible_keys(sequence, window);
    std::map<std::int64_t, Origin> origins;  // by position
    for (std::size_t earlier = 0; earlier <= s; ++earlier) {
      const StepTaps& past = run.steps[earlier];
      const TapValue* written = past.find(source);
      if (written == nullptr) return {};  // not shown: nothing to hold it against
      const HostTensor& part_of_rank = written->ranks[static_cast<std::size_t>(rank)];
      const Ranges held = written->layout.row_ranges(run.mesh, rank, past.step);
      std::int64_t step_row = 0;
      for (const StepSequence& part : past.step.sequences) {
        for (std::int64_t i = 0; part.sequence == sequence.sequence && i < part.count; ++i) {
          const Ranges local = locate(held, {{step_row + i, step_row + i + 1}});
          origins[part.first + i] = {&part_of_rank, local.empty() ? -1 : local[0].begin};
        }
        step_row += part.count;
      }
    }
    for (const auto& [position, origin] : origins) {
      if (origin.row < 0 || position < seen.begin || position >= seen.end) continue;
      const HostTensor& from = *origin.part;
      const bool good = !from.shape().empty() && origin.row < from.rows() &&
                        from.cols() == got.cols() && from.dtype() == got.dtype() &&
                        row < got.rows() &&
                        std::ranges::equal(row_bytes(got, row, 1), row_bytes(from, origin.row, 1));
      if (!good) {
        return fmt::format(
            "{} of rank {} does not hold what {} was at position {} of sequence {}", read.name, rank,
            source, position, sequence.sequence);
      }
      ++row;
    }
  }
  if (row == got.rows()) return {};
  return fmt::format("{} of rank {} has {} rows, attention may see {}", read.name, rank, got.rows(), row);
}

}  // namespace

int program_order(const Program& program, Phase phase, std::string_view tap) {
  const std::vector<Instruction>& instructions = program.instructions.at(phase);
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    for (const int output : instructions[i].outputs) {
      if (program.value(output).name == tap) return static_cast<int>(i);
    }
  }
  return static_cast<int>(instructions.size());
}

void WeightInspector::inspect(RankContext& context) {
  const Program& program = context.program();
  if (!context.device().has_values()) return;
  for (const Module& module : program.modules) {
    std::vector<std::string> tensors{module.weight()};
    if (module.has_bias) tensors.push_back(module.bias());
    for (const std::string& tensor : tensors) {
      const bool matrix = module.kind != ModuleKind::norm && tensor == module.weight();
      const Ranges rows = matrix ? program.plan.rows_of(module, context.rank()) : Ranges{{0, 1}};
      const Ranges cols = matrix ? program.plan.cols_of(module, context.rank())
                                 : program.plan.rows_of(module, context.rank());
      const HostTensor whole = weights_.whole(tensor);
      const Tensor shard = context.weight(tensor);
      std::string problem;
      if (shard.rows != total(rows) || shard.cols != total(cols)) {
        problem = fmt::format("the shard of {} is [{}, {}], the plan gives rank {} [{}, {}]", tensor,
                              shard.rows, shard.cols, context.rank(), total(rows), total(cols));
      } else {
        const auto size = element_size(whole.dtype());
        // A block of rows at a time: a copy of a whole shard would double a rank's memory.
        const std::int64_t block = std::max<std::int64_t>(
            1, (1 << 18) / std::max<std::int64_t>(1, shard.cols));
        std::int64_t local = 0;
        for (const Range& row_range : rows) {
          for (std::int64_t row = row_range.begin; row < row_range.end && problem.empty();
               row += block) {
            const std::int64_t count = std::min(block, row_range.end - row);
            const HostTensor got = context.device().to_host(context.stream(),
                                                            shard.row_range(local, local + count));
            for (std::int64_t r = 0; r < count && problem.empty(); ++r) {
              const std::byte* mine = got.data() + static_cast<std::size_t>(r * shard.cols) * size;
              const std::byte* source = whole.data() +
                                        static_cast<std::size_t>((row + r) * whole.cols()) * size;
              for (const Range& col : cols) {
                const auto bytes = static_cast<std::size_t>(col.size()) * size;
                if (std::memcmp(mine, source + static_cast<std::size_t>(col.begin) * size, bytes) != 0) {
                  problem = fmt::format(
                      "row {} of {} (row {} of rank {}'s shard) is not the whole weight's", row + r,
                      tensor, local + r, context.rank());
                }
                mine += bytes;
              }
            }
            local += count;
          }
        }
      }
      ShardFault found{"shape_differs", {}};
      if (!problem.empty() && shard.rows == total(rows) && shard.cols == total(cols)) {
        found = explain_shard(program, weights_, module, tensor == module.bias(), context.rank(),
                              context.device().to_host(context.stream(), shard));
        problem += "; " + found.sentence;
      }
      const std::lock_guard lock(mutex_);
      ++shards_;
      if (!problem.empty()) {
        const auto [site, order] = first_use(program, module, tensor == module.bias());
        faults_.push_back({site, order, Phase::prefill, 0, {context.rank()}, problem, {}, found.cause});
      }
    }
  }
}

std::vector<WiringFault> check_replicas(const Program& program, const TapRun& run) {
  std::vector<WiringFault> faults;
  std::vector<const Step*> so_far;
  for (const StepTaps& taps : run.steps) {
    so_far.push_back(&taps.step);
    const std::vector<Instruction>& instructions = program.instructions.at(taps.step.phase);
    for (std::size_t order = 0; order < instructions.size(); ++order) {
      const Instruction& instruction = instructions[order];
      for (const int output : instruction.outputs) {
        const TapValue* value = taps.find(program.value(output).name);
        if (value == nullptr) continue;
        Value placed = program.value(output);
        placed.layout = value->layout;
        const auto replicas = [&](int a, int b) {
          if (!same_part(*value, placed, run.mesh, so_far, a, b)) return false;
          if (instruction.op == nullptr) return true;
          return std::all_of(instruction.inputs.begin(), instruction.inputs.end(), [&](int input) {
            const TapValue* in = taps.find(program.value(input).name);
            return in == nullptr || equal_bits(*in, a, b);
          });
        };
        std::vector<int> holders;
        for (int rank = 0; rank < run.mesh.ranks(); ++rank) {
          if (!value->ranks[static_cast<std::size_t>(rank)].shape().empty())
            holders.push_back(rank);
        }
        for (const std::vector<int>& group : classes(holders, replicas)) {
          std::vector<std::vector<int>> equal = classes(
              group, [&](int a, int b) { return equal_bits(*value, a, b); });
          if (equal.size() == 1) continue;
          WiringFault fault{
              value->name, static_cast<int>(order), taps.step.phase, taps.step.index, {}, {}};
          const auto most = std::max_element(
              equal.begin(), equal.end(),
              [](const auto& a, const auto& b) { return a.size() < b.size(); });
          for (auto other = equal.begin(); other != equal.end(); ++other) {
            if (other != most) fault.ranks.insert(fault.ranks.end(), other->begin(), other->end());
          }
          if (fault.ranks.size() == most->size()) fault.against = *most;
          describe_replicas(fault, *most);
          fault.cause = "replicas_differ";
          faults.push_back(std::move(fault));
        }
      }
    }
  }
  return faults;
}

void settle_ties(std::vector<WiringFault>& faults, std::span<const TapScore> scores) {
  for (WiringFault& fault : faults) {
    if (fault.against.empty()) continue;
    // A bit changed in a value that was rounded right takes it further away: the mean shows it where no limit does.
    const auto distance = [&](const std::vector<int>& ranks) {
      double furthest = 0.0;
      for (const TapScore& score : scores) {
        if (score.tap != fault.tap) continue;
        if (std::find(ranks.begin(), ranks.end(), score.rank) == ranks.end()) continue;
        if (std::isnan(score.b)) return std::numeric_limits<double>::infinity();
        furthest = std::max(furthest, score.b > 0.0 ? score.b : score.a);
      }
      return furthest;
    };
    if (!(distance(fault.ranks) < distance(fault.against))) continue;
    std::swap(fault.ranks, fault.against);
    describe_replicas(fault, fault.against);
  }
}

std::vector<WiringFault> check_caches(const Program& program, const TapRun& run) {
  std::vector<WiringFault> faults;
  for (std::size_t s = 0; s < run.steps.size(); ++s) {
    const StepTaps& taps = run.steps[s];
    const std::vector<Instruction>& instructions = program.instructions.at(taps.step.phase);
    for (std::size_t order = 0; order < instructions.size(); ++order) {
      const Instruction& instruction = instructions[order];
      if (instruction.op == nullptr || instruction.op->name() != "cache") continue;
      for (std::size_t side = 0; side < 2; ++side) {
        const std::string& source = program.value(instruction.inputs[side]).name;
        const std::string& cached = program.value(instruction.outputs[side]).name;
        const std::int64_t window = program.value(instruction.outputs[side]).window;
        const TapValue* read = taps.find(cached);
        if (read == nullptr) continue;
        std::vector<int> wrong;
        std::string sentence;
        for (int rank = 0; rank < run.mesh.ranks(); ++rank) {
          if (read->ranks[static_cast<std::size_t>(rank)].shape().empty()) continue;
          std::string problem = cache_problem(*read, source, window, run, s, rank);
          if (problem.empty()) continue;
          wrong.push_back(rank);
          sentence = std::move(problem);
        }
        if (!wrong.empty()) {
          faults.push_back(
              {cached, static_cast<int>(order), taps.step.phase, taps.step.index, wrong, sentence});
        }
      }
    }
  }
  return faults;
}

std::vector<WiringFault> from_mismatches(const Program& program,
                                         const std::vector<WiringMismatch>& mismatches) {
  std::vector<WiringFault> faults;
  for (const WiringMismatch& mismatch : mismatches) {
    const auto same = std::find_if(faults.begin(), faults.end(), [&](const WiringFault& fault) {
      return fault.tap == mismatch.value && fault.phase == mismatch.phase &&
             fault.step == mismatch.step;
    });
    if (same == faults.end()) {
      const std::string sentence =
          mismatch.part.empty()
              ? fmt::format(
                    "{} was overwritten, or another buffer was read: {} read other bytes than its "
                    "producer wrote",
                    mismatch.value, mismatch.consumer)
              : fmt::format("{} comes from a fused op and has other bits than {} alone gives", mismatch.value,
                            mismatch.part);
      faults.push_back({mismatch.value,
                        program_order(program, mismatch.phase, mismatch.value),
                        mismatch.phase,
                        mismatch.step,
                        {mismatch.rank},
                        sentence,
                        {},
                        "overwritten"});
    } else if (std::find(same->ranks.begin(), same->ranks.end(), mismatch.rank) == same->ranks.end()) {
      same->ranks.push_back(mismatch.rank);
    }
  }
  return faults;
}

}  // namespace shardcheck
