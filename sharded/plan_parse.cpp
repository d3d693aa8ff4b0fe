// SPDX-License-Identifier: Apache-2.0
// A plan's text to a Plan: JSON with comments, and the small grammar inside its strings.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <unordered_map>

#include "model/error.hpp"
#include "model/shipped.hpp"
#include "sharded/plan.hpp"
#include "sharded/plan_text.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<std::string_view, PlanDim> kDims[] = {
    {"out", PlanDim::out},           {"in", PlanDim::in},          {"vocab", PlanDim::vocab},
    {"features", PlanDim::features}, {"tokens", PlanDim::tokens},  {"sequence", PlanDim::sequence},
    {"head", PlanDim::head},         {"kv_head", PlanDim::kv_head}};
constexpr std::pair<std::string_view, CutUnit> kUnits[] = {{"row", CutUnit::row},
                                                           {"head", CutUnit::head},
                                                           {"kv_head", CutUnit::kv_head},
                                                           {"group", CutUnit::group},
                                                           {"chunk", CutUnit::chunk}};
constexpr std::pair<std::string_view, CollectiveStep::Kind> kKinds[] = {
    {"all_reduce", CollectiveStep::Kind::all_reduce},
    {"reduce_scatter", CollectiveStep::Kind::reduce_scatter},
    {"all_gather", CollectiveStep::Kind::all_gather},
    {"all_to_all", CollectiveStep::Kind::all_to_all},
    {"broadcast", CollectiveStep::Kind::broadcast},
    {"slice", CollectiveStep::Kind::slice}};

class Parser {
 public:
  Parser(std::string_view text, const std::string& origin)
      : source_(text), origin_(origin), text_(text, origin) {}

  Plan parse() {
    Json json;
    try {
      // The callback refuses a key that stands twice: JSON would silently keep the last one.
      std::vector<std::set<std::string>> open;
      std::size_t keys = 0;
      const auto unique = [&](int, Json::parse_event_t event, Json& value) {
        if (event == Json::parse_event_t::object_start) open.emplace_back();
        if (event == Json::parse_event_t::object_end) open.pop_back();
        if (event == Json::parse_event_t::key && ++keys > 0 &&
            !open.back().insert(value.get<std::string>()).second) {
          text_.fail_at(begin_of_key(keys - 1), fmt::format("the key \"{}\" stands twice in one object; keep one",
                                                            value.get<std::string>()));
        }
        return true;
      };
      json = Json::parse(source_, unique, true, true);
    } catch (const Json::parse_error& error) {
      text_.fail_at(error.byte == 0 ? 0 : error.byte - 1,
                    "not valid JSON (comments are allowed): " + strip(error.what()));
    } catch (const Json::exception& error) {
      text_.fail_at(begin_of_huge_number(), fmt::format("a value is out of the range that JSON readers take ({})",
                                                        error.what()));
    }
    locate(json);
    object(json, "the plan");
    Plan plan;
    plan.origin = origin_;
    known(json, {"name", "mesh", "weights", "collectives", "phase", "ops", "unchecked", "families"},
          "the plan");
    if (!json.contains("name")) fail(json, "", "the plan needs \"name\"");
    plan.name = string(json["name"], "name");
    if (!json.contains("mesh"))
      fail(json, "", "the plan needs \"mesh\", a list of axis names such as [\"tp\"]");
    if (!json["mesh"].is_array() || json["mesh"].empty())
      fail(json["mesh"], "", "\"mesh\" must be a list of axis names");
    for (const Json& axis : json["mesh"]) {
      plan.mesh.push_back(string(axis, "mesh"));
      if (std::count(plan.mesh.begin(), plan.mesh.end(), plan.mesh.back()) > 1) {
        fail(axis, "", fmt::format("mesh names the axis \"{}\" twice", plan.mesh.back()));
      }
    }
    axes_ = plan.mesh;
    const bool flat = json.contains("weights") || json.contains("collectives") ||
                      json.contains("phase") || json.contains("ops") ||
                      json.contains("unchecked");
    if (json.contains("families")) {
      if (flat)
        fail_key(json["families"],
                 "a plan has either \"families\" or \"weights\" and \"collectives\", not both");
      object(json["families"], "families");
      for (const auto& [family, section] : json["families"].items()) {
        plan.families[family] = parse_section(section, family);
      }
    } else {
      plan.families[""] = parse_section(json, "the plan");
    }
    return plan;
  }

 private:
  PlanSection parse_section(const Json& json, const std::string& where) {
    object(json, where);
    if (where != "the plan") known(json, {"weights", "collectives", "phase", "ops", "unchecked"}, where);
    PlanSection section;
    if (json.contains("weights")) {
      object(json["weights"], where + ".weights");
      for (const auto& [pattern, cuts] : json["weights"].items()) {
        WeightRule rule{pattern, {}, place_of(cuts)};
        object(cuts, pattern);
        for (const auto& [axis, cut] : cuts.items()) {
          if (!is_axis(axis)) fail_key(cut, unknown_axis(axis));
          rule.cuts[axis] = parse_cut(cut, pattern);
        }
        section.weights.push_back(std::move(rule));
      }
    }
    if (json.contains("collectives")) section.collectives = parse_collectives(json["collectives"]);
    if (json.contains("phase")) {
      object(json["phase"], "phase");
      for (const auto& [phase, overrides] : json["phase"].items()) {
        if (phase != "prefill" && phase != "decode") {
          fail_key(overrides, fmt::format("unknown phase \"{}\"; use prefill or decode", phase));
        }
        object(overrides, "phase." + phase);
        // Both spellings: the points themselves, or under "collectives".
        const bool nested = overrides.size() == 1 && overrides.contains("collectives");
        section.phase[phase == "prefill" ? Phase::prefill : Phase::decode] = parse_collectives(
            nested ? overrides["collectives"] : overrides);
      }
    }
    if (json.contains("ops")) {
      object(json["ops"], where + ".ops");
      for (const auto& [pattern, op] : json["ops"].items())
        section.ops.push_back({pattern, string(op, pattern), place_of(op)});
    }
    if (json.contains("unchecked")) {
      object(json["unchecked"], where + ".unchecked");
      for (const auto& [pattern, style] : json["unchecked"].items())
        section.unchecked.push_back({pattern, string(style, pattern)});
    }
    return section;
  }

  std::vector<CollectiveRule> parse_collectives(const Json& json) {
    object(json, "collectives");
    std::vector<CollectiveRule> rules;
    for (const auto& [pattern, steps] : json.items()) {
      CollectiveRule rule{pattern, {}, place_of(steps)};
      if (steps.is_array()) {
        for (const Json& step : steps) rule.steps.push_back(parse_step(step, pattern));
      } else {
        rule.steps.push_back(parse_step(steps, pattern));
      }
      rules.push_back(std::move(rule));
    }
    return rules;
  }

  WeightCut parse_cut(const Json& json, const std::string& pattern) {
    WeightCut cut;
    if (json.is_object()) {
      known(json, {"shard", "by", "ranges"}, pattern);
      if (!json.contains("shard"))
        fail(json, "", fmt::format("{}: an explicit cut needs \"shard\"", pattern));
      cut.sharded = true;
      cut.dim = word(json["shard"], string(json["shard"], pattern), kDims, "dimension");
      if (json.contains("by")) cut.unit = word(json["by"], string(json["by"], pattern), kUnits, "unit");
      if (json.contains("ranges")) parse_ranges(json["ranges"], pattern, cut);
      return cut;
    }
    const std::string text = string(json, pattern);
    if (compact(text) == "replicate") return cut;
    const auto [head, arguments] = call(text);
    if (head != "shard" || arguments.size() != 1) {
      fail(json, "", fmt::format("unknown cut \"{}\"; use replicate, shard(D) or shard(D by U)", text));
    }
    cut.sharded = true;
    std::istringstream words(arguments[0]);
    std::string dim, by, unit, rest;
    words >> dim >> by >> unit >> rest;
    cut.dim = word(json, dim, kDims, "dimension");
    if (!by.empty()) {
      if (by != "by" || unit.empty() || !rest.empty()) {
        fail(json, "", fmt::format("unknown cut \"{}\"; use shard(D by U)", text));
      }
      cut.unit = word(json, unit, kUnits, "unit");
    }
    return cut;
  }

  void parse_ranges(const Json& json, const std::string& pattern, WeightCut& cut) {
    object(json, pattern + ".ranges");
    for (const auto& [size_text, per_rank] : json.items()) {
      int size = 0;
      for (const char c : size_text) {
        if (!std::isdigit(static_cast<unsigned char>(c)) || size > 100000 || size_text[0] == '0')
          size = -1;
        if (size >= 0) size = size * 10 + (c - '0');
      }
      if (size < 1)
        fail_key(per_rank,
             fmt::format("{}: ranges are keyed by axis size, not \"{}\"", pattern, size_text));
      const auto bad = [&](const Json& at) {
        fail(at, "", fmt::format("{}: ranges for {} rank{} must list, per rank, half-open [begin, end) pairs in "
                                 "units, 0 <= begin <= end",
                                 pattern, size, size == 1 ? "" : "s"));
      };
      if (!per_rank.is_array() || per_rank.size() != static_cast<std::size_t>(size)) bad(per_rank);
      std::vector<Ranges> parsed;
      for (const Json& rank : per_rank) {
        if (!rank.is_array()) bad(rank);
        Ranges ranges;
        for (const Json& range : rank) {
          if (!range.is_array() || range.size() != 2 || !is_count(range[0]) || !is_count(range[1]) ||
              range[0].get<std::int64_t>() > range[1].get<std::int64_t>()) {
            bad(range);
          }
          ranges.push_back({range[0].get<std::int64_t>(), range[1].get<std::int64_t>()});
        }
        parsed.push_back(std::move(ranges));
      }
      cut.ranges[size] = std::move(parsed);
    }
  }

  static bool is_count(const Json& json) {
    return json.is_number_unsigned() &&
           json.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  }

  CollectiveStep parse_step(const Json& json, const std::string& pattern) {
    const std::string text = string(json, pattern);
    const auto [head, arguments] = call(text);
    CollectiveStep step;
    step.kind = word(json, head, kKinds, "collective");
    std::vector<std::string> expected;
    switch (step.kind) {
      case CollectiveStep::Kind::all_reduce:
        expected = {"sum|max", "A"};
        break;
      case CollectiveStep::Kind::reduce_scatter:
        expected = {"sum", "D", "A"};
        break;
      case CollectiveStep::Kind::all_gather:
        expected = {"D", "A"};
        break;
      case CollectiveStep::Kind::all_to_all:
        expected = {"Dsplit", "Dconcat", "A"};
        break;
      case CollectiveStep::Kind::broadcast:
        expected = {"root", "A"};
        break;
      case CollectiveStep::Kind::slice:
        expected = {"D", "A"};
        break;
    }
    if (arguments.size() != expected.size()) {
      fail(json, "", fmt::format("\"{}\" needs {}({})", text, head, fmt::join(expected, ", ")));
    }
    std::size_t next = 0;
    if (step.kind == CollectiveStep::Kind::all_reduce ||
        step.kind == CollectiveStep::Kind::reduce_scatter) {
      const std::string& op = arguments[next++];
      if (op != "sum" && (op != "max" || step.kind == CollectiveStep::Kind::reduce_scatter)) {
        fail(json, op, fmt::format("\"{}\": unknown reduction \"{}\"; use {}", text, op, expected[0]));
      }
      step.op = op == "max" ? ReduceOp::max : ReduceOp::sum;
    }
    if (step.kind == CollectiveStep::Kind::broadcast) {
      const std::string& root = arguments[next++];
      if (root.empty() || root.size() > 6 ||
          !std::all_of(root.begin(), root.end(), [](unsigned char c) { return std::isdigit(c); })) {
        fail(json, root, fmt::format("\"{}\": the root must be a rank number", text));
      }
      step.root = std::stoi(root);
    } else if (step.kind != CollectiveStep::Kind::all_reduce) {
      step.dim = activation_dim(json, arguments[next++], text);
      if (step.kind == CollectiveStep::Kind::all_to_all)
        step.concat = activation_dim(json, arguments[next++], text);
    }
    std::string group = arguments[next];
    if (group.size() >= 2 && group.front() == '[' && group.back() == ']') {
      std::istringstream names(group.substr(1, group.size() - 2));
      for (std::string axis; std::getline(names, axis, ',');) step.axes.push_back(compact(axis));
    } else {
      step.axes = {group};
    }
    if (step.axes.empty()) fail(json, "", fmt::format("\"{}\" names no mesh axis", text));
    for (const std::string& axis : step.axes) {
      if (!is_axis(axis)) fail(json, axis, unknown_axis(axis));
      if (std::count(step.axes.begin(), step.axes.end(), axis) > 1)
        fail(json, "", fmt::format("\"{}\" names the axis \"{}\" twice", text, axis));
    }
    if (step.kind == CollectiveStep::Kind::all_to_all && of_tokens(step.dim) == of_tokens(step.concat)) {
      fail(json, "", fmt::format("\"{}\" splits and joins the same dimension; one is tokens, the other "
                             "features",
                             text));
    }
    return step;
  }

  static bool of_tokens(PlanDim dim) { return dim == PlanDim::tokens || dim == PlanDim::sequence; }

  PlanDim activation_dim(const Json& json, const std::string& text, const std::string& step) {
    const PlanDim dim = word(json, text, kDims, "dimension");
    if (dim == PlanDim::out || dim == PlanDim::in) {
      fail(json, text, fmt::format("\"{}\": {} is a weight's dimension; an activation has tokens, "
                             "sequence, features, head, "
                             "kv_head, vocab",
                             step, text));
    }
    return dim;
  }

  /// "f(a, [b, c])" -> {"f", {"a", "[b,c]"}}: split at commas outside brackets.
  std::pair<std::string, std::vector<std::string>> call(const std::string& text) {
    const auto open = text.find('(');
    const auto close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close < open ||
        !compact(text.substr(close + 1)).empty()) {
      return {trim(text), {}};
    }
    std::vector<std::string> arguments;
    std::string current;
    int depth = 0;
    for (const char c : text.substr(open + 1, close - open - 1)) {
      if (c == '[') ++depth;
      if (c == ']') --depth;
      if (c == ',' && depth == 0) {
        arguments.push_back(trim(current));
        current.clear();
      } else {
        current += c;
      }
    }
    arguments.push_back(trim(current));
    return {compact(text.substr(0, open)), arguments};
  }

  template <typename Value, std::size_t N>
  Value word(const Json& at, const std::string& text, const std::pair<std::string_view, Value> (&table)[N],
             std::string_view what) {
    std::vector<std::string> words;
    for (const auto& [key, value] : table) {
      if (key == text) return value;
      words.emplace_back(key);
    }
    fail(at, text, fmt::format("unknown {} \"{}\"; did you mean \"{}\"? (one of {})", what, text,
                           nearest_name(text, words), fmt::join(words, ", ")));
  }

  bool is_axis(const std::string& axis) const {
    return std::find(axes_.begin(), axes_.end(), axis) != axes_.end();
  }
  std::string unknown_axis(const std::string& axis) const {
    return fmt::format("unknown mesh axis \"{}\"; this plan's mesh is [{}]", axis, fmt::join(axes_, ", "));
  }
  void object(const Json& json, const std::string& where) {
    if (!json.is_object())
      fail(json, "", fmt::format("{} must be an object, not {}", where, json.type_name()));
  }
  std::string string(const Json& json, const std::string& where) {
    if (!json.is_string()) {
      fail(json, "", fmt::format("{}: expected a string, found {}", where,
                              json.is_structured() ? json.type_name() : json.dump()));
    }
    return json.get<std::string>();
  }
  void known(const Json& json, const std::vector<std::string>& keys, const std::string& where) {
    for (const auto& item : json.items()) {
      if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
        fail_key(item.value(), fmt::format("{} has the unknown key \"{}\"; did you mean \"{}\"?", where,
                                     item.key(), nearest_name(item.key(), keys)));
      }
    }
  }

  /// Finds every value of the tree in the text: both are walked in the same order.
  void locate(const Json& root) {
    tokens_ = text_.tokens();
    std::vector<const Json*> todo{&root};
    for (std::size_t i = 0; i < tokens_.size() && !todo.empty(); ++i) {
      if (tokens_[i].key) continue;
      const Json* node = todo.back();
      todo.pop_back();
      token_of_[node] = i;
      const std::size_t children = todo.size();
      if (node->is_structured())
        for (const Json& child : *node) todo.push_back(&child);
      std::reverse(todo.begin() + static_cast<std::ptrdiff_t>(children), todo.end());
    }
  }
  std::size_t begin_of_key(std::size_t number) const {
    for (const PlanText::Token& token : text_.tokens())
      if (token.key && number-- == 0) return token.begin;
    return 0;
  }
  std::size_t begin_of_huge_number() const {
    for (const PlanText::Token& token : text_.tokens()) {
      const std::string number(source_.substr(token.begin, token.end - token.begin));
      const bool digits = !number.empty() && (std::isdigit(static_cast<unsigned char>(number.back())) != 0);
      if (!token.key && digits && std::isinf(std::strtod(number.c_str(), nullptr))) return token.begin;
    }
    return 0;
  }
  PlanText::Token token(const Json& at) const {
    const auto found = token_of_.find(&at);
    return found == token_of_.end() ? PlanText::Token{} : tokens_[found->second];
  }
  /// Of the key that a value has: the token before it.
  std::size_t key_begin(const Json& keyed) const {
    const auto found = token_of_.find(&keyed);
    return found == token_of_.end() || found->second == 0 ? 0 : tokens_[found->second - 1].begin;
  }
  TextPlace place_of(const Json& keyed) const {
    const PlanText::Place at = text_.place(key_begin(keyed));
    return {at.line, at.column};
  }

  /// At a value, or at a word inside it.
  [[noreturn]] void fail(const Json& at, const std::string& word, const std::string& message) const {
    text_.fail_at(text_.find(token(at), word), message);
  }
  /// At the key of a value.
  [[noreturn]] void fail_key(const Json& at, const std::string& message) const {
    text_.fail_at(key_begin(at), message);
  }
  static std::string strip(std::string_view what) {
    const auto colon = what.find("syntax error");
    return std::string(colon == std::string_view::npos ? what : what.substr(colon));
  }
  static std::string trim(std::string text) {
    const auto space = [](unsigned char c) { return std::isspace(c) != 0; };
    while (!text.empty() && space(static_cast<unsigned char>(text.back()))) text.pop_back();
    const auto first = std::find_if_not(text.begin(), text.end(), space);
    return {first, text.end()};
  }
  static std::string compact(std::string text) {
    std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
    return text;
  }

  std::string_view source_;
  const std::string& origin_;
  PlanText text_;
  std::vector<PlanText::Token> tokens_;
  std::unordered_map<const Json*, std::size_t> token_of_;
  std::vector<std::string> axes_;
};

}  // namespace

Plan parse_plan(std::string_view text, const std::string& origin) {
  return Parser(text, origin).parse();
}

Plan load_plan(const std::string& file_or_name) {
  const std::filesystem::path file = find_shipped("plans", file_or_name);
  return parse_plan(read_text(file), file.string());
}

}  // namespace shardcheck
