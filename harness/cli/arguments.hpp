// SPDX-License-Identifier: Apache-2.0
// Options that several commands share, and what they turn into.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/verify.hpp"
#include "model/model.hpp"
#include "sharded/plan.hpp"

namespace CLI {
class App;
}

namespace shardcheck::cli {

/// MODEL (first, or --model), --random, --layers, --ignore-key.
struct ModelArguments {
  std::string positional, option;
  std::optional<std::uint64_t> random;
  std::optional<std::int64_t> layers;
  std::vector<std::string> ignored_keys;

  void add_to(CLI::App& app);
  std::string name() const;  // InputError if none or both are given
  Model load(bool shapes_only = false) const;
  std::string repro() const;  // the words that say the same
};

/// --plan, --tp LIST, --mesh x=2,y=4 (repeatable).
struct PlanArguments {
  std::string plan = "megatron";
  std::vector<std::string> tp, mesh;

  void add_to(CLI::App& app, const std::string& default_tp);
  /// Meshes in the order they were given. InputError: a size that is no positive number, one given twice, an axis that
  /// the plan's mesh doesn't have.
  std::vector<Mesh> meshes(const Plan& plan) const;
  /// Meshes written as in an option's words: sizes of the plan's one axis, or axis=size lists. Checked like meshes().
  static std::vector<Mesh> parse(const Plan& plan, const std::string& option, const std::vector<std::string>& words);

 private:
  std::string default_tp_;
};

/// "prefill,decode" and "f64,bf16" as typed after --phase and --dtype. InputError names the valid words.
std::vector<Phase> parse_phases(const std::vector<std::string>& words);
std::vector<DType> parse_dtypes(const std::vector<std::string>& words);
DType parse_dtype(const std::string& word, const std::string& option);
std::vector<std::int64_t> parse_lengths(const std::vector<std::string>& words);

/// Comma-separated words, from one option or several.
std::vector<std::string> split(const std::vector<std::string>& words);

/// Writes a whole file or nothing: the text goes to FILE.part, which is then renamed. InputError if it can't be.
void write_file(const std::string& file, const std::string& text);
/// Throws InputError if the folder of `file` doesn't exist: found out before a long run, not after it.
void check_writable(const std::string& file);

/// Progress on stderr, only on a terminal: one line, overwritten.
std::function<void(const std::string&, double)> terminal_progress();
bool stdout_is_terminal();

}  // namespace shardcheck::cli
