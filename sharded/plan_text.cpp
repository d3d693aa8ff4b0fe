// SPDX-License-Identifier: Apache-2.0
#include "sharded/plan_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "model/error.hpp"

namespace shardcheck {
namespace {

/// The text with every comment blanked, so that offsets stay.
std::string without_comments(std::string_view text) {
  std::string result(text);
  bool in_string = false;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;  // whatever is escaped doesn't end the string
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && (text.substr(i, 2) == "//" || text.substr(i, 2) == "/*")) {
      const bool block = text[i + 1] == '*';
      const std::size_t close = text.find(block ? "*/" : "\n", i + 2);
      const std::size_t end = close == std::string_view::npos ? text.size() : close + (block ? 2 : 0);
      std::replace_if(
          result.begin() + static_cast<std::ptrdiff_t>(i),
          result.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return c != '\n'; }, ' ');
      i = end - 1;
    }
  }
  return result;
}

}  // namespace

std::vector<PlanText::Token> PlanText::tokens() const {
  const std::string text = without_comments(text_);
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  std::vector<Token> tokens;
  std::size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;  // a byte order mark, which JSON readers skip
  while (i < text.size()) {
    const char c = text[i];
    if (space(c) || c == ',' || c == ':' || c == '}' || c == ']') {
      ++i;
    } else if (c == '{' || c == '[') {
      tokens.push_back({false, i, i + 1});
      ++i;
    } else if (c == '"') {
      std::size_t end = i + 1;
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end, text.size());
      std::size_t next = end + 1;
      while (next < text.size() && space(text[next])) ++next;
      tokens.push_back({next < text.size() && text[next] == ':', i + 1, end});
      i = end + 1;
    } else {
      const std::size_t end = std::min(text.find_first_of(",:{}[]\" \t\n\r", i), text.size());
      tokens.push_back({false, i, end});
      i = end;
    }
  }
  return tokens;
}

std::size_t PlanText::find(const Token& token, std::string_view word) const {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  const std::string_view inside = text_.substr(token.begin, token.end - token.begin);
  for (std::size_t at = inside.find(word); !word.empty() && at != std::string_view::npos;
       at = inside.find(word, at + 1)) {
    // A word, not a part of one: "a" is no axis of "all_reduce(sum, a)" before the last character.
    const bool begins = at == 0 || !is_word(word.front()) || !is_word(inside[at - 1]);
    const std::size_t end = at + word.size();
    const bool ends = end == inside.size() || !is_word(word.back()) || !is_word(inside[end]);
    if (begins && ends) return token.begin + at;
  }
  return token.begin;
}

PlanText::Place PlanText::place(std::size_t offset) const {
  const std::string_view before = text_.substr(0, std::min(offset, text_.size()));
  const auto newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? before.size() + 1
                                                               : before.size() - newline;
  return {static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
          static_cast<int>(column)};
}

void PlanText::fail_at(std::size_t offset, const std::string& message) const {
  const Place at = place(offset);
  throw InputError(fmt::format("{}:{}:{}: {}", origin_, at.line, at.column, message));
}

}  // namespace shardcheck
