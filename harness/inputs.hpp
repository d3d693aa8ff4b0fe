// SPDX-License-Identifier: Apache-2.0
// What a run is fed: token ids per sequence, and the steps that take them through prefill and decode.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sharded/program.hpp"
#include "sharded/step.hpp"

namespace shardcheck {

using Sequences = std::vector<std::vector<std::int64_t>>;

struct InputOptions {
  std::int64_t tokens = 16;           // of the longest sequence
  /// Sequences of tokens, tokens - 1, ... (at least 1). Not given: 1, or one more than ranks share them where a program
  /// cuts sequences, so that every rank has one.
  std::optional<std::int64_t> batch;
  std::vector<std::int64_t> lengths;  // explicit lengths; wins over tokens and batch
  std::filesystem::path ids;          // file, one sequence of integers a line; wins over all
  std::uint64_t seed = 1;
  std::int64_t decode_steps = 8;
  std::int64_t chunk = 0;  // prompt tokens per prefill step and sequence; 0: whole
};

/// The sequences. Generated ids hold the first and last vocabulary row of every rank of every program, those of the
/// largest group first, as far as there is room; the rest is random. Throws InputError for ids outside the vocabulary,
/// an empty file, or a sequence beyond the model's positions where those are learned.
Sequences make_sequences(const InputOptions& options, const Config& config,
                         std::span<const Program* const> programs);

/// First and last vocabulary row of every rank of every program, the largest group first: a loader that is one row off at
/// a border is invisible to ids that never touch it.
std::vector<std::int64_t> border_ids(const Config& config, std::span<const Program* const> programs);

/// Whole sequences, `chunk` tokens of each per step.
std::vector<Step> prefill_steps(const Sequences& sequences, std::int64_t chunk);

/// Each sequence prefills max(1, n - decode_steps) tokens, then takes one token of its own a step until its ids end.
/// Throws InputError if no sequence has a token left to decode.
std::vector<Step> decode_steps(const Sequences& sequences, const InputOptions& options);

}  // namespace shardcheck
