// SPDX-License-Identifier: Apache-2.0
// A plan's text, and the place in it that a message is about. Private to .cpp files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace shardcheck {

class PlanText {
 public:
  /// Bytes [begin, end) of a key or value: of a string what stands between its quotes, of an object or list its bracket.
  struct Token {
    bool key = false;
    std::size_t begin = 0, end = 0;
  };
  struct Place {
    int line = 1, column = 1;
  };

  /// `text` and `origin` (the path named in messages) must outlive this.
  PlanText(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  /// Every key and value in the order of the text; comments don't count. Of text that is no JSON, what can be told.
  std::vector<Token> tokens() const;
  /// Where `word` stands within a token; where the token begins if it doesn't.
  std::size_t find(const Token& token, std::string_view word) const;
  Place place(std::size_t offset) const;
  /// Throws InputError with the line and column of this byte.
  [[noreturn]] void fail_at(std::size_t offset, const std::string& message) const;

 private:
  std::string_view text_;
  const std::string& origin_;
};

}  // namespace shardcheck
