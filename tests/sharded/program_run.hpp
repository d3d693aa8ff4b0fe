// SPDX-License-Identifier: Apache-2.0
// Builds and runs programs, keeps every tap, puts the ranks' parts together, and says how far two correct programs of
// one model may differ.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sharded/fusion.hpp"
#include "sharded/op.hpp"
#include "sharded/runner.hpp"
#include "tests/sharded/small_models.hpp"

namespace shardcheck {

/// A whole value, [rows, cols].
struct Whole {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;
};

/// The ranks' parts of a value, and which of its rows each has.
struct Parts {
  Layout layout;
  std::int64_t rows = 0;  // of the whole value
  std::vector<Ranges> held;
  std::vector<HostTensor> ranks;
};

class Taps final : public TapSink {
 public:
  explicit Taps(Mesh mesh) : mesh_(std::move(mesh)) {}
  /// What runs now: both must live until it has ended.
  void begin(const Program& program, const std::vector<Step>& steps) {
    program_ = &program;
    steps_ = &steps;
  }
  bool wants(std::string_view) const override { return true; }
  void take(const TapInfo& info, HostTensor value) override {
    const std::lock_guard lock(mutex_);
    Parts& parts = parts_[{info.phase, info.step, std::string(info.name)}];
    if (parts.ranks.empty()) describe(info, parts);
    parts.ranks[static_cast<std::size_t>(info.rank)] = std::move(value);
  }

  using Key = std::tuple<Phase, int, std::string>;
  const std::map<Key, Parts>& parts() const { return parts_; }
  const Parts& at(const std::string& name, Phase phase = Phase::prefill, int step = 0) const {
    return parts_.at({phase, step, name});
  }

  /// Flat indices, in the whole value, of what a rank holds, in its order.
  std::vector<std::size_t> indices(const Parts& parts, int rank) const {
    std::vector<std::size_t> all;
    for (const Range& rows : parts.held[static_cast<std::size_t>(rank)]) {
      for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        for (const Range& range : parts.layout.feature_ranges(rank)) {
          for (std::int64_t col = range.begin; col < range.end; ++col)
            all.push_back(static_cast<std::size_t>(row * parts.layout.features + col));
        }
      }
    }
    return all;
  }

  /// The value that the parts make up; where several ranks own an element, the lowest one's. NaN where nobody does.
  Whole whole(const Parts& parts) const {
    Whole result{parts.rows, parts.layout.features, {}};
    result.values.assign(static_cast<std::size_t>(result.rows * result.cols),
                         std::numeric_limits<double>::quiet_NaN());
    for (int rank = mesh_.ranks() - 1; rank >= 0; --rank) {
      const std::vector<double> part = parts.ranks[static_cast<std::size_t>(rank)].to_f64();
      const std::vector<std::size_t> owned = indices(parts, rank);
      EXPECT_EQ(part.size(), owned.size()) << "a part has another shape than its layout";
      for (std::size_t i = 0; i < std::min(part.size(), owned.size()); ++i)
        result.values[owned[i]] = part[i];
    }
    return result;
  }
  Whole whole(const std::string& name, Phase phase = Phase::prefill, int step = 0) const {
    return whole(at(name, phase, step));
  }

 private:
  void describe(const TapInfo& info, Parts& parts) const {
    parts.layout = *info.layout;
    parts.ranks.resize(static_cast<std::size_t>(mesh_.ranks()));
    if (program_ == nullptr) return;  // nobody will ask which rows these are
    const auto value = std::find_if(
        program_->values.begin(), program_->values.end(),
        [&](const Value& v) { return v.name == info.name && v.layout == *info.layout; });
    std::vector<const Step*> so_far;
    for (const Step& step : *steps_) {
      so_far.push_back(&step);
      if (step.phase == info.phase && step.index == info.step) break;
    }
    Value whole{value->name, Layout::replicated(value->layout.features, mesh_), value->dtype,
                value->rows, value->window};
    parts.rows = total(held_rows(whole, mesh_, 0, so_far));
    for (int rank = 0; rank < mesh_.ranks(); ++rank)
      parts.held.push_back(held_rows(*value, mesh_, rank, so_far));
  }

  Mesh mesh_;
  const Program* program_ = nullptr;
  const std::vector<Step>* steps_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Parts> parts_;
};

struct RunSetup {
  RunSettings settings{DType::f64, DType::f64, {}};
  std::string device = "cpu", world = "threads";
  Interposer* interposer = nullptr;
  bool check_wiring = true;
  bool fuse = false;
};

struct Ran {
  Program program;
  std::unique_ptr<Taps> taps;
  RunResult result;
  Whole logits(Phase phase = Phase::prefill, int step = 0) const {
    return taps->whole("lm_head", phase, step);
  }
};

inline Program program_of(const Model& model, const Plan& plan, const Mesh& mesh,
                          const Registry& ops = builtin_ops()) {
  return build_program(model, resolve(plan, model, mesh), ops);
}

/// Runs `steps`; `ops` must outlive the result.
inline Ran run(const Model& model, const Plan& plan, const Mesh& mesh,
               const std::vector<Step>& steps, const Registry& ops, const RunSetup& setup = {}) {
  Ran ran{program_of(model, plan, mesh, ops), std::make_unique<Taps>(mesh), {}};
  if (setup.fuse) ran.program = fuse(ran.program, ops);
  ran.taps->begin(ran.program, steps);
  const auto device = builtin_devices().make(setup.device);
  const auto world = builtin_worlds().make(setup.world, mesh);
  WeightStore weights(model, setup.settings.storage);
  RunOptions options;
  options.taps = ran.taps.get();
  options.interposer = setup.interposer;
  options.check_wiring = setup.check_wiring;
  Device* const devices[] = {device.get()};
  ran.result = run_program(ran.program, *world, devices, weights, setup.settings, steps, options);
  EXPECT_TRUE(ran.result.wiring.empty()) << "a value changed between producer and consumer";
  return ran;
}

inline std::vector<std::int64_t> varied_ids(std::int64_t count, std::int64_t vocab,
                                            std::int64_t seed = 0) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back((i * i * 31 + 7 * i + 5 + 13 * seed) % vocab);
  return ids;
}

/// One prefill of whole sequences of these lengths.
inline Step prefill(const std::vector<std::int64_t>& lengths, std::int64_t vocab) {
  Step step;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const auto sequence = static_cast<std::int64_t>(s);
    step.sequences.push_back({sequence, 0, lengths[s]});
    const std::vector<std::int64_t> ids = varied_ids(lengths[s], vocab, sequence);
    step.ids.insert(step.ids.end(), ids.begin(), ids.end());
  }
  return step;
}

/// A step of varied ids that takes these parts of its sequences.
inline Step step_of(Phase phase, int index, std::vector<StepSequence> parts, std::int64_t vocab) {
  Step step{phase, index, std::move(parts), {}};
  std::int64_t tokens = 0;
  for (const StepSequence& part : step.sequences) tokens += part.count;
  step.ids = varied_ids(tokens, vocab, 20 + index);
  return step;
}

/// How far two correct f64 programs of a model may be apart at any tap, in max-norm. A sum of K terms errs by at most
/// K u of the sum of their sizes in whatever order (Higham, Accuracy and Stability, 4.2). A layer has eight sums in
/// series: norm, q and k, scores, softmax times v, o, norm, gate and up, down; the head is two more, rounded up to a layer.
inline double summation_limit(const Config& config) {
  const std::int64_t terms = std::max({config.hidden_size, config.q_size(), config.intermediate_size});
  return 8.0 * static_cast<double>((config.num_layers + 1) * terms) * 0x1p-53;
}

/// Largest |a - b|; infinite if the sizes differ or anything is NaN.
inline double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double apart = a.size() == b.size() ? 0.0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double error = std::abs(a[i] - b[i]);
    apart = std::isfinite(error) ? std::max(apart, error) : std::numeric_limits<double>::infinity();
  }
  return apart;
}

inline double max_size(const std::vector<double>& values) {
  double size = 0.0;
  for (const double value : values) size = std::max(size, std::abs(value));
  return size;
}

/// Max-norm relative difference; infinite if shapes differ or anything is NaN.
inline double difference(const Whole& a, const Whole& b) {
  if (a.rows != b.rows || a.cols != b.cols) return std::numeric_limits<double>::infinity();
  const double apart = max_difference(a.values, b.values);
  return apart == 0.0 ? 0.0 : apart / max_size(a.values);
}

/// Rows [begin, begin + count) of a value.
inline Whole rows_of(const Whole& whole, std::int64_t begin, std::int64_t count) {
  return {count,
          whole.cols,
          {whole.values.begin() + begin * whole.cols,
           whole.values.begin() + (begin + count) * whole.cols}};
}

/// Every whole (not partial) value of `sharded` against the one of the same name in `single`: what the ranks have
/// together, and every rank's own part. Checks that there is something to compare.
inline void expect_same_values(const Ran& single, const Ran& sharded, double limit) {
  int compared = 0;
  for (const auto& [key, parts] : sharded.taps->parts()) {
    const auto twin = single.taps->parts().find(key);
    if (parts.layout.any_partial() || twin == single.taps->parts().end()) continue;
    const Whole expected = single.taps->whole(twin->second);
    const std::string where = std::get<2>(key) + ", " + std::string(name(std::get<0>(key))) + " " +
                              std::to_string(std::get<1>(key)) + " on " +
                              to_string(sharded.program.mesh);
    ++compared;
    EXPECT_LE(difference(expected, sharded.taps->whole(parts)), limit) << where;
    for (int rank = 0; rank < sharded.program.mesh.ranks(); ++rank) {
      const std::vector<double> got = parts.ranks[static_cast<std::size_t>(rank)].to_f64();
      std::vector<double> share;
      for (const std::size_t i : sharded.taps->indices(parts, rank))
        share.push_back(expected.values[i]);
      EXPECT_LE(max_difference(share, got), limit * max_size(expected.values))
          << where << ", rank " << rank;
    }
  }
  EXPECT_GT(compared, 10);
}

}  // namespace shardcheck
