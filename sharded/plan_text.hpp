// SPDX-License-Identifier: Apache-2.0
// A plan's text, and the place in it that a message is about. Private to .cpp files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardcheck {

class PlanText {
 public:
  /// `text` and `origin` (the path named in messages) must outlive this.
  PlanText(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  /// Throws InputError with the line and column where `token` stands: as a whole string if there is one, else inside
  /// one; comments don't count. With no place if the text doesn't have it or `token` is empty.
  [[noreturn]] void fail(const std::string& token, const std::string& message) const;
  /// Throws InputError with the line and column of this byte.
  [[noreturn]] void fail_at(std::size_t offset, const std::string& message) const;

 private:
  std::string_view text_;
  const std::string& origin_;
};

}  // namespace shardcheck
