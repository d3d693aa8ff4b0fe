// SPDX-License-Identifier: Apache-2.0
// A plan's text to a Plan: JSON with comments, and the small grammar inside its strings.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

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
      const auto unique = [&](int, Json::parse_event_t event, Json& value) {
        if (event == Json::parse_event_t::object_start) open.emplace_back();
        if (event == Json::parse_event_t::object_end) open.pop_back();
        if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second) {
          fail(value.get<std::string>(),
               fmt::format("the key \"{}\" stands twice in one object; keep one",
                           value.get<std::string>()));
        }
        return true;
      };
      json = Json::parse(source_, unique, true, true);
    } catch (const Json::parse_error& error) {
      text_.fail_at(error.byte == 0 ? 0 : error.byte - 1,
                    "not valid JSON (comments are allowed): " + strip(error.what()));
    } catch (const Json::exception& error) {
      throw InputError(fmt::format("{}: a value is out of the range that JSON readers take ({})",
                                   origin_, error.what()));
    }
    object(json, "the plan");
    Plan plan;
    plan.origin = origin_;
    known(json, {"name", "mesh", "weights", "collectives", "phase", "families"}, "the plan");
    if (!json.contains("name")) fail("", "the plan needs \"name\"");
    plan.name = string(json["name"], "name");
    if (!json.contains("mesh"))
      fail("", "the plan needs \"mesh\", a list of axis names such as [\"tp\"]");
    if (!json["mesh"].is_array() || json["mesh"].empty())
      fail("mesh", "\"mesh\" must be a list of axis names");
    for (const Json& axis : json["mesh"]) {
      plan.mesh.push_back(string(axis, "mesh"));
      if (std::count(plan.mesh.begin(), plan.mesh.end(), plan.mesh.back()) > 1) {
        fail(plan.mesh.back(), fmt::format("mesh names the axis \"{}\" twice", plan.mesh.back()));
      }
    }
    axes_ = plan.mesh;
    const bool flat = json.contains("weights") || json.contains("collectives") ||
                      json.contains("phase");
    if (json.contains("families")) {
      if (flat)
        fail("families",
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
    if (where != "the plan") known(json, {"weights", "collectives", "phase"}, where);
    PlanSection section;
    if (json.contains("weights")) {
      object(json["weights"], where + ".weights");
      for (const auto& [pattern, cuts] : json["weights"].items()) {
        WeightRule rule{pattern, {}};
        object(cuts, pattern);
        for (const auto& [axis, cut] : cuts.items()) {
          check_axis(axis);
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
          fail(phase, fmt::format("unknown phase \"{}\"; use prefill or decode", phase));
        }
        object(overrides, "phase." + phase);
        // Both spellings: the points themselves, or under "collectives".
        const bool nested = overrides.size() == 1 && overrides.contains("collectives");
        section.phase[phase == "prefill" ? Phase::prefill : Phase::decode] = parse_collectives(
            nested ? overrides["collectives"] : overrides);
      }
    }
    return section;
  }

  std::vector<CollectiveRule> parse_collectives(const Json& json) {
    object(json, "collectives");
    std::vector<CollectiveRule> rules;
    for (const auto& [pattern, steps] : json.items()) {
      CollectiveRule rule{pattern, {}};
      if (steps.is_array()) {
        for (const Json& step : steps) rule.steps.push_back(parse_step(string(step, pattern)));
      } else {
        rule.steps.push_back(parse_step(string(steps, pattern)));
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
        fail(pattern, fmt::format("{}: an explicit cut needs \"shard\"", pattern));
      cut.sharded = true;
      cut.dim = word(string(json["shard"], pattern), kDims, "dimension");
      if (json.contains("by")) cut.unit = word(string(json["by"], pattern), kUnits, "unit");
      if (json.contains("ranges")) parse_ranges(json["ranges"], pattern, cut);
      return cut;
    }
    const std::string text = string(json, pattern);
    if (compact(text) == "replicate") return cut;
    const auto [head, arguments] = call(text);
    if (head != "shard" || arguments.size() != 1) {
      fail(text, fmt::format("unknown cut \"{}\"; use replicate, shard(D) or shard(D by U)", text));
    }
    cut.sharded = true;
    std::istringstream words(arguments[0]);
    std::string dim, by, unit, rest;
    words >> dim >> by >> unit >> rest;
    cut.dim = word(dim, kDims, "dimension");
    if (!by.empty()) {
      if (by != "by" || unit.empty() || !rest.empty()) {
        fail(text, fmt::format("unknown cut \"{}\"; use shard(D by U)", text));
      }
      cut.unit = word(unit, kUnits, "unit");
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
        fail(size_text,
             fmt::format("{}: ranges are keyed by axis size, not \"{}\"", pattern, size_text));
      const auto bad = [&] {
        fail(size_text, fmt::format("{}: ranges for {} ranks must list, per rank, half-open "
                                    "[begin, end) pairs in units",
                                    pattern, size));
      };
      if (!per_rank.is_array() || per_rank.size() != static_cast<std::size_t>(size)) bad();
      std::vector<Ranges> parsed;
      for (const Json& rank : per_rank) {
        if (!rank.is_array()) bad();
        Ranges ranges;
        for (const Json& range : rank) {
          if (!range.is_array() || range.size() != 2 || !range[0].is_number_integer() ||
              !range[1].is_number_integer()) {
            bad();
          }
          ranges.push_back({range[0].get<std::int64_t>(), range[1].get<std::int64_t>()});
        }
        parsed.push_back(std::move(ranges));
      }
      cut.ranges[size] = std::move(parsed);
    }
  }

  CollectiveStep parse_step(const std::string& text) {
    const auto [head, arguments] = call(text);
    CollectiveStep step;
    step.kind = word(head, kKinds, "collective");
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
      fail(text, fmt::format("\"{}\" needs {}({})", text, head, fmt::join(expected, ", ")));
    }
    std::size_t next = 0;
    if (step.kind == CollectiveStep::Kind::all_reduce ||
        step.kind == CollectiveStep::Kind::reduce_scatter) {
      const std::string& op = arguments[next++];
      if (op != "sum" && (op != "max" || step.kind == CollectiveStep::Kind::reduce_scatter)) {
        fail(op, fmt::format("\"{}\": unknown reduction \"{}\"; use {}", text, op, expected[0]));
      }
      step.op = op == "max" ? ReduceOp::max : ReduceOp::sum;
    }
    if (step.kind == CollectiveStep::Kind::broadcast) {
      const std::string& root = arguments[next++];
      if (root.empty() || root.size() > 6 ||
          !std::all_of(root.begin(), root.end(), [](unsigned char c) { return std::isdigit(c); })) {
        fail(root, fmt::format("\"{}\": the root must be a rank number", text));
      }
      step.root = std::stoi(root);
    } else if (step.kind != CollectiveStep::Kind::all_reduce) {
      step.dim = activation_dim(arguments[next++], text);
      if (step.kind == CollectiveStep::Kind::all_to_all)
        step.concat = activation_dim(arguments[next++], text);
    }
    std::string group = arguments[next];
    if (group.size() >= 2 && group.front() == '[' && group.back() == ']') {
      std::istringstream names(group.substr(1, group.size() - 2));
      for (std::string axis; std::getline(names, axis, ',');) step.axes.push_back(compact(axis));
    } else {
      step.axes = {group};
    }
    if (step.axes.empty()) fail(text, fmt::format("\"{}\" names no mesh axis", text));
    for (const std::string& axis : step.axes) {
      check_axis(axis);
      if (std::count(step.axes.begin(), step.axes.end(), axis) > 1)
        fail(text, fmt::format("\"{}\" names the axis \"{}\" twice", text, axis));
    }
    if (step.kind == CollectiveStep::Kind::all_to_all && of_tokens(step.dim) == of_tokens(step.concat)) {
      fail(text, fmt::format("\"{}\" splits and joins the same dimension; one is tokens, the other "
                             "features",
                             text));
    }
    return step;
  }

  static bool of_tokens(PlanDim dim) { return dim == PlanDim::tokens || dim == PlanDim::sequence; }

  PlanDim activation_dim(const std::string& text, const std::string& step) {
    const PlanDim dim = word(text, kDims, "dimension");
    if (dim == PlanDim::out || dim == PlanDim::in) {
      fail(step, fmt::format("\"{}\": {} is a weight's dimension; an activation has tokens, "
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
  Value word(const std::string& text, const std::pair<std::string_view, Value> (&table)[N],
             std::string_view what) {
    std::vector<std::string> words;
    for (const auto& [key, value] : table) {
      if (key == text) return value;
      words.emplace_back(key);
    }
    fail(text, fmt::format("unknown {} \"{}\"; did you mean \"{}\"? (one of {})", what, text,
                           nearest_name(text, words), fmt::join(words, ", ")));
  }

  void check_axis(const std::string& axis) {
    if (std::find(axes_.begin(), axes_.end(), axis) == axes_.end()) {
      fail(axis, fmt::format("unknown mesh axis \"{}\"; this plan's mesh is [{}]", axis,
                             fmt::join(axes_, ", ")));
    }
  }
  void object(const Json& json, const std::string& where) {
    if (!json.is_object())
      fail(where, fmt::format("{} must be an object, not {}", where, json.type_name()));
  }
  std::string string(const Json& json, const std::string& where) {
    if (!json.is_string()) {
      fail(where, fmt::format("{}: expected a string, found {}", where,
                              json.is_structured() ? json.type_name() : json.dump()));
    }
    return json.get<std::string>();
  }
  void known(const Json& json, const std::vector<std::string>& keys, const std::string& where) {
    for (const auto& item : json.items()) {
      if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
        fail(item.key(), fmt::format("{} has the unknown key \"{}\"; did you mean \"{}\"?", where,
                                     item.key(), nearest_name(item.key(), keys)));
      }
    }
  }

  [[noreturn]] void fail(const std::string& token, const std::string& message) const {
    text_.fail(token, message);
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
