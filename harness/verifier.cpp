// SPDX-License-Identifier: Apache-2.0
#include "harness/verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/candidate_build.hpp"
#include "harness/candidate_names.hpp"
#include "model/error.hpp"

namespace shardcheck {

Verifier::~Verifier() = default;

void Verifier::fail(const std::string& message) { throw InputError("verifier: " + message); }

Verifier::Verifier(const Model& model, VerifierOptions options)
    : model_(model), options_(std::move(options)), ops_(builtin_ops()) {
  if (options_.sequences.empty()) fail("needs the token ids that the program was fed");
  const std::int64_t vocabulary = model_.config().vocab_size;
  for (const std::vector<std::int64_t>& ids : options_.sequences) {
    for (const std::int64_t id : ids) {
      if (id < 0 || id >= vocabulary)
        fail(fmt::format("id {} lies outside the vocabulary of {}", id, vocabulary));
    }
  }
  builder_ = std::make_unique<CandidateBuilder>(model_, ops_, options_.mesh, "verifier");
  builder_->sequences() = options_.sequences;
  TapRun& run = builder_->run();
  run.storage = options_.storage;
  run.wire = options_.wire.value_or(options_.storage);
  run.reduction = options_.reduction;
}

void Verifier::step(Phase phase, const std::vector<StepSequence>& parts) {
  const std::lock_guard lock(mutex_);
  for (const StepSequence& part : parts) {
    const auto count = static_cast<std::int64_t>(options_.sequences.size());
    if (part.sequence < 0 || part.sequence >= count)
      fail(fmt::format("there is no sequence {}; the run has {}", part.sequence, count));
    const auto length = static_cast<std::int64_t>(
        options_.sequences[static_cast<std::size_t>(part.sequence)].size());
    if (part.count < 0 || part.first < 0 || part.first + part.count > length) {
      fail(fmt::format("sequence {} has {} ids, not those of [{}, {})", part.sequence, length,
                       part.first, part.first + part.count));
    }
  }
  const std::vector<StepTaps>& steps = builder_->run().steps;
  const auto index = std::count_if(
      steps.begin(), steps.end(), [phase](const StepTaps& step) { return step.step.phase == phase; });
  builder_->add_step(phase, static_cast<int>(index), parts);
}

/// A run that states no steps is one prompt step.
void Verifier::begin() {
  if (!builder_->run().steps.empty()) return;
  std::vector<StepSequence> all;
  for (const std::vector<std::int64_t>& ids : options_.sequences) {
    all.push_back({static_cast<std::int64_t>(all.size()), 0, static_cast<std::int64_t>(ids.size())});
  }
  builder_->add_step(Phase::prefill, 0, all);
}

void Verifier::place(std::string pattern, std::map<std::string, std::string> axes,
                     std::optional<std::vector<Ranges>> ranges) {
  const std::lock_guard lock(mutex_);
  const auto ranks = static_cast<std::size_t>(options_.mesh.ranks());
  if (ranges && ranges->size() != ranks)
    fail(fmt::format("{}: ranges of {} ranks, but the mesh has {}", pattern, ranges->size(), ranks));
  statements_.push_back({std::move(pattern), std::move(axes), std::move(ranges)});
}

const Layout& Verifier::layout_of(const std::string& name) {
  if (!builder_->knows(name)) {
    fail(fmt::format("{} has no tap \"{}\"; did you mean \"{}\"?", model_.config().name, name,
                     nearest_name(name, builder_->known_taps())));
  }
  if (builder_->is_placed(name)) return builder_->layout(name);
  PlacementWords words{name, {}, std::nullopt};
  for (const Statement& statement : statements_) {
    if (!matches(statement.pattern, name)) continue;
    words = {statement.pattern, {statement.axes.begin(), statement.axes.end()}, statement.ranges};
  }
  builder_->place(name, words);
  return builder_->layout(name);
}

void Verifier::tap(std::string_view name, int rank, HostTensor value, int step) {
  const std::lock_guard lock(mutex_);
  take(std::string(strip_prefix(name)), rank, std::move(value), step);
}

void Verifier::tap(std::string_view name, int rank, std::span<const float> values, int step) {
  const std::vector<double> wide(values.begin(), values.end());
  const std::lock_guard lock(mutex_);
  take_numbers(std::string(strip_prefix(name)), rank, wide, step);
}

void Verifier::tap(std::string_view name, int rank, std::span<const double> values, int step) {
  const std::lock_guard lock(mutex_);
  take_numbers(std::string(strip_prefix(name)), rank, values, step);
}

void Verifier::take_numbers(const std::string& name, int rank, std::span<const double> values,
                            int step) {
  if (rank < 0 || rank >= options_.mesh.ranks())
    fail(fmt::format("{}: there is no rank {} on {}", name, rank, to_string(options_.mesh)));
  const Layout& layout = layout_of(name);
  const std::int64_t cols = layout.local_features(rank);
  const auto count = static_cast<std::int64_t>(values.size());
  if (cols == 0 ? count != 0 : count % cols != 0) {
    fail(fmt::format("{}: {} numbers of rank {} are no rows of its {} features", name, count, rank,
                     cols));
  }
  const TapRun& run = builder_->run();
  const DType dtype = dtype_of(dtype_of_tap(name, layout), run.storage, run.wire);
  // Without features the number of rows can't be told from the numbers: those that the rank must have.
  std::int64_t rows = cols == 0 ? 0 : count / cols;
  if (cols == 0) {
    begin();
    if (step >= 0 && step < static_cast<int>(run.steps.size()))
      rows = total(
          layout.row_ranges(options_.mesh, rank, run.steps[static_cast<std::size_t>(step)].step));
  }
  HostTensor tensor = round_to(dtype, {rows, cols}, values);
  for (std::int64_t i = 0; i < count; ++i) {
    const double number = values[static_cast<std::size_t>(i)];
    if (tensor.at(i) == number || std::isnan(number)) continue;
    fail(fmt::format("{}: {} of rank {} is no number of {}; hand in what the program stores", name,
                     number, rank, shardcheck::name(dtype)));
  }
  take(name, rank, std::move(tensor), step);
}

void Verifier::take(const std::string& name, int rank, HostTensor value, int step) {
  if (rank < 0 || rank >= options_.mesh.ranks())
    fail(fmt::format("{}: there is no rank {} on {}", name, rank, to_string(options_.mesh)));
  begin();
  TapRun& run = builder_->run();
  if (step < 0 || step >= static_cast<int>(run.steps.size()))
    fail(fmt::format("{}: there is no step {}; the run has {}", name, step, run.steps.size()));
  const ValueDType kind = dtype_of_tap(name, layout_of(name));
  const DType dtype = dtype_of(kind, run.storage, run.wire);
  if (value.dtype() != dtype) {
    fail(fmt::format("{}: rank {} hands in {}, but {} of this run is {}", name, rank,
                     shardcheck::name(value.dtype()),
                     kind == ValueDType::wire      ? "wire"
                     : kind == ValueDType::storage ? "storage"
                                                   : "the accumulate dtype",
                     shardcheck::name(dtype)));
  }
  if (value.shape().size() != 2)
    fail(fmt::format("{}: rank {} hands in {} extents, not [tokens, features]", name, rank,
                     value.shape().size()));
  if (!builder_->store(run.steps[static_cast<std::size_t>(step)], name, rank, std::move(value)))
    fail(fmt::format("{}: rank {} has handed in its part of step {} before", name, rank, step));
}

CandidateReport Verifier::report(const VerifyParts& parts) const {
  const std::lock_guard lock(mutex_);
  const std::vector<StepTaps>& steps = builder_->run().steps;
  if (std::all_of(steps.begin(), steps.end(), [](const StepTaps& s) { return s.values.empty(); }))
    fail("no tensor was handed in, so there is nothing to judge");
  return compare_candidate(model_, builder_->candidate(), parts);
}

}  // namespace shardcheck
