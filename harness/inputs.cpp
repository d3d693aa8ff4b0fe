// SPDX-License-Identifier: Apache-2.0
#include "harness/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <sstream>

#include "model/error.hpp"
#include "model/shipped.hpp"

namespace shardcheck {
namespace {

Sequences read_ids(const std::filesystem::path& file) {
  Sequences sequences;
  std::istringstream lines(read_text(file));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::replace_if(
        line.begin(), line.end(), [](char c) { return c == ',' || c == '\t' || c == '\r'; }, ' ');
    std::istringstream words(line);
    std::vector<std::int64_t> ids;
    for (std::string word; words >> word;) {
      std::int64_t id = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (error != std::errc() || end != word.data() + word.size()) {
        throw InputError(
            fmt::format("{}:{}: \"{}\" is no token id; write integers, one sequence a line",
                        file.string(), number, word));
      }
      ids.push_back(id);
    }
    if (!ids.empty()) sequences.push_back(std::move(ids));
  }
  if (sequences.empty()) {
    throw InputError(
        fmt::format("{}: holds no token ids; write integers, one sequence a line", file.string()));
  }
  return sequences;
}

std::int64_t usual_batch(std::span<const Program* const> programs) {
  std::int64_t batch = 1;
  for (const Program* program : programs) {
    for (const Value& value : program->values) {
      std::int64_t ranks = 1;
      for (std::size_t axis = 0; axis < program->mesh.axes.size(); ++axis) {
        if (value.layout.placements[axis] == Placement::sharded(Dim::sequences))
          ranks *= program->mesh.axes[axis].size;
      }
      if (ranks > 1) batch = std::max(batch, ranks + 1);
    }
  }
  return batch;
}

Sequences generate(const InputOptions& options, const Config& config,
                   std::span<const Program* const> programs) {
  std::vector<std::int64_t> lengths = options.lengths;
  const auto batch = static_cast<std::size_t>(options.batch.value_or(usual_batch(programs)));
  for (std::int64_t i = 0; lengths.size() < batch && options.lengths.empty(); ++i) {
    lengths.push_back(std::max<std::int64_t>(1, options.tokens - i));
  }
  const std::vector<std::int64_t> borders = border_ids(config, programs);
  std::mt19937_64 random(options.seed);
  std::size_t next = 0;
  Sequences sequences;
  for (const std::int64_t length : lengths) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < length; ++i) {
      ids.push_back(
          next < borders.size()
              ? borders[next++]
              : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(config.vocab_size)));
    }
    sequences.push_back(std::move(ids));
  }
  return sequences;
}

void check(const Sequences& sequences, const Config& config, const std::string& origin) {
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const auto length = static_cast<std::int64_t>(sequences[s].size());
    if (config.rope.type == RopeConfig::Type::none && length > config.max_positions) {
      throw InputError(
          fmt::format("{}: sequence {} has {} tokens, but {} has {} learned positions; shorten it",
                      origin, s, length, config.name, config.max_positions));
    }
    for (std::size_t i = 0; i < sequences[s].size(); ++i) {
      if (sequences[s][i] >= 0 && sequences[s][i] < config.vocab_size) continue;
      throw InputError(
          fmt::format("{}: sequence {}, token {}: id {} is outside the vocabulary [0, {})", origin,
                      s, i, sequences[s][i], config.vocab_size));
    }
  }
}

/// Appends the steps that take every sequence from where it is to `until`, at most `chunk` tokens of each a step.
void append_prefill(const Sequences& sequences, const std::vector<std::int64_t>& until,
                    std::int64_t chunk, std::vector<Step>& steps) {
  std::vector<std::int64_t> done(sequences.size(), 0);
  for (int index = 0;; ++index) {
    Step step{Phase::prefill, index, {}, {}};
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const std::int64_t left = until[s] - done[s];
      const std::int64_t count = chunk > 0 ? std::min(chunk, left) : left;
      if (count == 0) continue;
      step.sequences.push_back({static_cast<std::int64_t>(s), done[s], count});
      step.ids.insert(step.ids.end(), sequences[s].begin() + done[s],
                      sequences[s].begin() + done[s] + count);
      done[s] += count;
    }
    if (step.sequences.empty()) return;
    steps.push_back(std::move(step));
  }
}

}  // namespace

std::vector<std::int64_t> border_ids(const Config& config, std::span<const Program* const> programs) {
  std::vector<const Program*> by_size(programs.begin(), programs.end());
  std::stable_sort(by_size.begin(), by_size.end(), [](const Program* a, const Program* b) {
    return a->mesh.ranks() > b->mesh.ranks();
  });
  std::vector<std::int64_t> ids;
  const auto add = [&](std::int64_t id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  for (const Program* program : by_size) {
    for (const Module& module : program->modules) {
      if (module.role != ModuleRole::token_embedding) continue;
      const Partition even = Partition::balanced(config.vocab_size, program->mesh.ranks());
      const ModulePlacement& placement = program->plan.placement(module.path);
      for (const bool last : {false, true}) {
        for (int rank = 0; rank < program->mesh.ranks(); ++rank) {
          const Ranges ranges = placement.rows.empty()
                                    ? even.of(rank)
                                    : placement.rows[static_cast<std::size_t>(rank)];
          for (const Range& range : ranges) {
            if (range.size() > 0) add(last ? range.end - 1 : range.begin);
          }
        }
      }
    }
  }
  return ids;
}

Sequences make_sequences(const InputOptions& options, const Config& config,
                         std::span<const Program* const> programs) {
  const bool from_file = !options.ids.empty();
  Sequences sequences = from_file ? read_ids(options.ids) : generate(options, config, programs);
  check(sequences, config, from_file ? options.ids.string() : "--tokens");
  return sequences;
}

std::vector<Step> prefill_steps(const Sequences& sequences, std::int64_t chunk) {
  std::vector<std::int64_t> until;
  for (const auto& sequence : sequences)
    until.push_back(static_cast<std::int64_t>(sequence.size()));
  std::vector<Step> steps;
  append_prefill(sequences, until, chunk, steps);
  return steps;
}

std::vector<Step> decode_steps(const Sequences& sequences, const InputOptions& options) {
  std::vector<std::int64_t> prompt;
  bool any = false;
  for (const auto& sequence : sequences) {
    const auto length = static_cast<std::int64_t>(sequence.size());
    prompt.push_back(std::max<std::int64_t>(1, length - options.decode_steps));
    any = any || prompt.back() < length;
  }
  if (!any) {
    throw InputError(
        "--phase decode: no sequence has a token left to decode after its prompt; give at least "
        "one 2 tokens or more "
        "(--tokens) and --steps 1 or more");
  }
  std::vector<Step> steps;
  append_prefill(sequences, prompt, options.chunk, steps);
  for (int index = 0;; ++index) {
    Step step{Phase::decode, index, {}, {}};
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const std::int64_t at = prompt[s] + index;
      if (at >= static_cast<std::int64_t>(sequences[s].size())) continue;
      step.sequences.push_back({static_cast<std::int64_t>(s), at, 1});
      step.ids.push_back(sequences[s][static_cast<std::size_t>(at)]);
    }
    if (step.sequences.empty()) return steps;
    steps.push_back(std::move(step));
  }
}

}  // namespace shardcheck
