// SPDX-License-Identifier: Apache-2.0
// A Python constructor call as plans in code write it: ColwiseParallel(input_layouts=Shard(1), use_local_output=False).
// Private to .cpp files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/import/sources.hpp"

namespace shardcheck {

/// A word, a call, or a list of such: Shard(1), None, (Shard(1), None).
struct CallText {
  std::string name;  // empty: a list
  bool called = false;
  std::vector<std::pair<std::string, CallText>> arguments;  // keyword (may be empty), value

  const CallText* find(const std::string& keyword) const;
  std::string text() const;
};

/// The entry at `path`: a string with a call, or an object {"style": "ColwiseParallel", keyword: value}. Fails with its
/// place where it is neither or isn't well formed.
CallText read_call(const ImportedFile& file, const JsonPath& path);

/// Fails at `path` if the call has a keyword that isn't among these, with the nearest.
void check_keywords(const CallText& call, const std::vector<std::string>& known,
                    const ImportedFile& file, const JsonPath& path);

/// The value of a keyword that is True or False.
bool flag(const CallText& call, const std::string& keyword, bool otherwise,
          const ImportedFile& file, const JsonPath& path);

}  // namespace shardcheck
