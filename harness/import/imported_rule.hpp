// SPDX-License-Identifier: Apache-2.0
// What one entry of another project's plan says about the modules that it names: the words that all sources are
// brought to, before a Plan is made of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/modules.hpp"

namespace shardcheck {

/// Where an activation's elements are, in the words that all sources share. `any`: the source doesn't say.
enum class ImportedLayout { any, replicated, tokens, sequence, features, partial };

/// How a weight is cut. A linear: colwise by output rows, rowwise by input columns. An embedding: colwise by features,
/// rowwise by vocabulary.
enum class ImportedCut { none, colwise, rowwise };

/// What a cut may not split.
enum class ImportedGrain {
  chunk,    // nothing: pieces of ceil(n/P) rows
  row,      // nothing: balanced
  head,     // attention heads; k and v: the kv heads that the rank's q heads need
  kv_group  // kv heads, each with the q heads that it serves; outside attention as `row`
};

struct ImportedRule {
  std::string pattern;    // of module paths, as in a plan; shown in messages
  std::string style;      // as written
  std::size_t place = 0;  // byte of the entry in the file
  std::size_t style_place = 0;

  /// Modules it is about. Null: those that `pattern` matches.
  std::function<bool(const Module&)> selects;

  ImportedCut cut = ImportedCut::none;
  ImportedGrain grain = ImportedGrain::chunk;
  /// A fused weight's runs of rows (colwise) that are cut each on its own: their number if equal, or their sizes.
  std::int64_t equal_blocks = 0;
  std::vector<std::int64_t> blocks;
  bool own_sections = false;   // those that the model knows: q | k | v, gate | up
  std::int64_t padded_to = 0;  // vocabulary rows are cut as if filled up to a multiple of this

  /// Input: what the style takes it to be, and what the computation then gets. They differ: a collective.
  ImportedLayout input_given = ImportedLayout::any, input_wanted = ImportedLayout::any;
  bool head_splits_input = false;  // at lm_head the input is given whole, whatever input_given says
  /// Output: what the computation made, and what the style leaves.
  ImportedLayout output_made = ImportedLayout::any, output_left = ImportedLayout::any;

  /// Not empty: why no rule of a plan can say it. It is kept by name.
  std::string unchecked;
  /// A word for people, written beside the rule.
  std::string remark;
};

/// All of a file.
struct ImportedRules {
  std::vector<ImportedRule> rules;
  /// Byte of the word that asks for a rule for every linear, if there is one.
  std::optional<std::size_t> every_linear;
};

}  // namespace shardcheck
