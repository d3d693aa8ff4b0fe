// SPDX-License-Identifier: Apache-2.0
// Values that agree with their recomputation and still can't be believed: a comparison of zeros with zeros passes every
// limit. A run with one of them counts as failed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/judge.hpp"
#include "harness/run.hpp"

namespace shardcheck {

struct Mistrust {
  std::string tap;
  int rank = 0;          // the lowest one concerned
  std::string sentence;  // what was seen
};

/// Looks at activations placed R or S, over all steps of the run stacked; never at partials, caches or ids. In order of
/// the program. Mistrusted are:
///  - more than half exact zeros in the whole value;
///  - two ranks' non-empty shards of disjoint features that are bitwise equal (of at least 8 elements: a few equal
///    numbers of 16 bits happen by chance); attention outputs of ranks that read the same kv head are left out, for
///    with one key to see each of them is that head's v;
///  - a value cut along its features of which every line, over all ranks, is one number repeated.
std::vector<Mistrust> mistrusted_values(const TapRun& run);

/// The taps of ops that have no entry in harness/local, each once.
std::vector<Mistrust> unchecked_values(std::span<const TapScore> scores);

}  // namespace shardcheck
