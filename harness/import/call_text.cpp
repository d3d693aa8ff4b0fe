// SPDX-License-Identifier: Apache-2.0
#include "harness/import/call_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "model/json_text.hpp"
#include "model/modules.hpp"

namespace shardcheck {
namespace {

class Reader {
 public:
  Reader(const std::string& text, const ImportedFile& file, const JsonPath& path)
      : text_(text), file_(file), path_(path) {}

  CallText whole() {
    CallText call = value(0);
    space();
    if (at_ != text_.size()) fail();
    return call;
  }

 private:
  static constexpr int kMostNested = 8;

  CallText value(int depth) {
    if (depth > kMostNested) fail();
    space();
    CallText result;
    if (take('(') || take('[')) {
      arguments(result, depth);
      return result;
    }
    result.name = word();
    if (result.name.empty()) fail();
    if (take('(')) {
      result.called = true;
      arguments(result, depth);
    }
    return result;
  }

  void arguments(CallText& into, int depth) {
    space();
    while (!take(')') && !take(']')) {
      const std::size_t begin = at_;
      std::string keyword = word();
      space();
      if (!take('=')) {
        keyword.clear();
        at_ = begin;
      }
      into.arguments.emplace_back(std::move(keyword), value(depth + 1));
      space();
      if (!take(',') && (at_ == text_.size() || (text_[at_] != ')' && text_[at_] != ']'))) fail();
      space();
    }
  }

  std::string word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '_' || text_[at_] == '-' || text_[at_] == '.')) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  [[noreturn]] void fail() const {
    file_.places.fail_value(
        path_,
        fmt::format("\"{}\" is no call such as \"RowwiseParallel(output_layouts=Shard(1))\"", text_));
  }

  const std::string& text_;
  const ImportedFile& file_;
  const JsonPath& path_;
  std::size_t at_ = 0;
};

CallText from_json(const nlohmann::json& json, const ImportedFile& file, const JsonPath& path) {
  if (json.is_string()) return Reader(json.get_ref<const std::string&>(), file, path).whole();
  CallText call;
  if (json.is_null()) {
    call.name = "None";
  } else if (json.is_boolean()) {
    call.name = json.get<bool>() ? "True" : "False";
  } else if (json.is_number_integer()) {
    call.name = json.dump();
  } else if (json.is_array()) {
    for (std::size_t i = 0; i < json.size(); ++i) {
      JsonPath at = path;
      at.push_back(std::to_string(i));
      call.arguments.emplace_back("", from_json(json[i], file, at));
    }
  } else {
    file.places.fail_value(path, fmt::format("{} is no layout, word or list of them", quoted(json)));
  }
  return call;
}

}  // namespace

const CallText* CallText::find(const std::string& keyword) const {
  for (const auto& [key, value] : arguments) {
    if (key == keyword) return &value;
  }
  return nullptr;
}

std::string CallText::text() const {
  std::vector<std::string> parts;
  for (const auto& [key, value] : arguments)
    parts.push_back(key.empty() ? value.text() : key + "=" + value.text());
  if (name.empty() || called) return fmt::format("{}({})", name, fmt::join(parts, ", "));
  return name;
}

CallText read_call(const ImportedFile& file, const JsonPath& path) {
  const nlohmann::json* json = &file.json;
  for (const std::string& key : path) json = &json->at(key);
  if (!json->is_object()) {
    CallText call = from_json(*json, file, path);
    if (call.name.empty())
      file.places.fail_value(path, fmt::format("\"{}\": names no style", path.back()));
    call.called = true;
    return call;
  }
  if (!json->contains("style") || !json->at("style").is_string()) {
    file.places.fail_value(
        path, fmt::format("\"{}\": needs \"style\", the name of a style or class", path.back()));
  }
  CallText call;
  call.name = json->at("style").get<std::string>();
  call.called = true;
  for (const auto& [keyword, value] : json->items()) {
    if (keyword == "style") continue;
    JsonPath at = path;
    at.push_back(keyword);
    call.arguments.emplace_back(keyword, from_json(value, file, at));
  }
  return call;
}

void check_keywords(const CallText& call, const std::vector<std::string>& known,
                    const ImportedFile& file, const JsonPath& path) {
  for (const auto& [keyword, value] : call.arguments) {
    if (std::find(known.begin(), known.end(), keyword) != known.end()) continue;
    file.places.fail_value(
        path, keyword.empty()
                  ? fmt::format("{} takes its arguments by name ({}), not \"{}\" alone", call.name,
                                fmt::join(known, ", "), value.text())
                  : fmt::format("{} has no argument \"{}\"; did you mean \"{}\"? (one of {})", call.name,
                                keyword, nearest_name(keyword, known), fmt::join(known, ", ")));
  }
}

bool flag(const CallText& call, const std::string& keyword, bool otherwise,
          const ImportedFile& file, const JsonPath& path) {
  const CallText* value = call.find(keyword);
  if (value == nullptr) return otherwise;
  if (value->name != "True" && value->name != "False") {
    file.places.fail_value(
        path, fmt::format("{}: {} is True or False, not \"{}\"", call.name, keyword, value->text()));
  }
  return value->name == "True";
}

}  // namespace shardcheck
