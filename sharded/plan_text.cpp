// SPDX-License-Identifier: Apache-2.0
#include "sharded/plan_text.hpp"

#include <fmt/format.h>

#include <algorithm>

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

void PlanText::fail(const std::string& token, const std::string& message) const {
  const std::string text = without_comments(text_);
  const std::size_t whole = text.find('"' + token + '"');
  const std::size_t at = whole == std::string::npos ? text.find(token) : whole + 1;
  if (token.empty() || at == std::string::npos)
    throw InputError(fmt::format("{}: {}", origin_, message));
  fail_at(at, message);
}

void PlanText::fail_at(std::size_t offset, const std::string& message) const {
  const std::string_view before = text_.substr(0, std::min(offset, text_.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const auto newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? before.size() + 1
                                                               : before.size() - newline;
  throw InputError(fmt::format("{}:{}:{}: {}", origin_, line, column, message));
}

}  // namespace shardcheck
