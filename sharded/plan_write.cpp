// SPDX-License-Identifier: Apache-2.0
#include "sharded/plan_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kWidestKey = 48;  // longer keys don't push the others' values out
constexpr std::size_t kWidestValue = 44;

std::string quoted(const std::string& text) { return Json(text).dump(); }

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string json_of(const WeightCut& cut) {
  if (!cut.sharded || cut.ranges.empty()) return quoted(to_string(cut));
  Json ranges = Json::object();
  for (const auto& [size, per_rank] : cut.ranges) {
    Json ranks = Json::array();
    for (const Ranges& mine : per_rank) {
      Json list = Json::array();
      for (const Range& range : mine) list.push_back({range.begin, range.end});
      ranks.push_back(std::move(list));
    }
    ranges[std::to_string(size)] = std::move(ranks);
  }
  return fmt::format(R"({{"shard": {}, "by": {}, "ranges": {}}})", quoted(std::string(name(cut.dim))),
                     quoted(std::string(name(cut.unit))), ranges.dump());
}

struct Entry {
  std::string key, value, remark;
};

std::string json_of(const std::vector<CollectiveStep>& steps) {
  std::vector<std::string> words;
  for (const CollectiveStep& step : steps) words.push_back(quoted(to_string(step)));
  return steps.size() == 1 ? words[0] : fmt::format("[{}]", fmt::join(words, ", "));
}

/// Lines "key: value," with the values and the remarks below each other.
std::string block(const std::vector<Entry>& entries, const std::string& indent) {
  if (entries.empty()) return "{}";
  std::size_t key_width = 0, value_width = 0;
  for (const Entry& entry : entries) {
    key_width = std::max(key_width, std::min(quoted(entry.key).size(), kWidestKey));
    value_width = std::max(value_width, std::min(entry.value.size(), kWidestValue));
  }
  std::string out = "{\n";
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool last = i + 1 == entries.size();
    std::string line = indent + "  " + padded(quoted(entries[i].key) + ":", key_width + 1) + " " +
                       entries[i].value + (last ? "" : ",");
    if (!entries[i].remark.empty()) {
      line = padded(line, indent.size() + 2 + key_width + 2 + value_width + 1) + "  // " +
             entries[i].remark;
    }
    out += line + "\n";
  }
  return out + indent + "}";
}

std::vector<Entry> entries_of(const std::vector<WeightRule>& rules, const PlanRemarks& remarks) {
  std::vector<Entry> entries;
  for (const WeightRule& rule : rules) {
    std::vector<std::string> axes;
    for (const auto& [axis, cut] : rule.cuts)
      axes.push_back(fmt::format("{}: {}", quoted(axis), json_of(cut)));
    const auto remark = remarks.find(rule.pattern);
    std::string text = remark == remarks.end() ? "" : remark->second;
    std::replace(text.begin(), text.end(), '\n', ' ');
    entries.push_back({rule.pattern, fmt::format("{{{}}}", fmt::join(axes, ", ")), std::move(text)});
  }
  return entries;
}

std::vector<Entry> entries_of(const std::vector<CollectiveRule>& rules) {
  std::vector<Entry> entries;
  for (const CollectiveRule& rule : rules)
    entries.push_back({rule.pattern, json_of(rule.steps), ""});
  return entries;
}

/// The members of a section, each on its own lines.
std::vector<std::string> members_of(const PlanSection& section, const PlanRemarks& remarks,
                                    const std::string& indent) {
  std::vector<std::string> members;
  members.push_back(
      fmt::format("\"weights\": {}", block(entries_of(section.weights, remarks), indent)));
  members.push_back(fmt::format("\"collectives\": {}", block(entries_of(section.collectives), indent)));
  if (!section.phase.empty()) {
    std::vector<std::string> phases;
    for (const auto& [phase, rules] : section.phase) {
      phases.push_back(fmt::format("{}  \"{}\": {}", indent, name(phase),
                                   block(entries_of(rules), indent + "  ")));
    }
    members.push_back(fmt::format("\"phase\": {{\n{}\n{}}}", fmt::join(phases, ",\n"), indent));
  }
  if (!section.ops.empty()) {
    std::vector<Entry> entries;
    for (const OpRule& rule : section.ops) entries.push_back({rule.pattern, quoted(rule.op), ""});
    members.push_back(fmt::format("\"ops\": {}", block(entries, indent)));
  }
  if (!section.unchecked.empty()) {
    std::vector<Entry> entries;
    for (const UncheckedRule& rule : section.unchecked)
      entries.push_back({rule.pattern, quoted(rule.style), ""});
    members.push_back(fmt::format("\"unchecked\": {}", block(entries, indent)));
  }
  return members;
}

}  // namespace

std::string_view name(PlanDim dim) {
  switch (dim) {
    case PlanDim::out:
      return "out";
    case PlanDim::in:
      return "in";
    case PlanDim::vocab:
      return "vocab";
    case PlanDim::features:
      return "features";
    case PlanDim::tokens:
      return "tokens";
    case PlanDim::sequence:
      return "sequence";
    case PlanDim::head:
      return "head";
    case PlanDim::kv_head:
      return "kv_head";
  }
  return "?";
}

std::string_view name(CutUnit unit) {
  switch (unit) {
    case CutUnit::row:
      return "row";
    case CutUnit::head:
      return "head";
    case CutUnit::kv_head:
      return "kv_head";
    case CutUnit::group:
      return "group";
    case CutUnit::chunk:
      return "chunk";
  }
  return "?";
}

std::string to_string(const WeightCut& cut) {
  if (!cut.sharded) return "replicate";
  if (cut.unit == CutUnit::row) return fmt::format("shard({})", name(cut.dim));
  return fmt::format("shard({} by {})", name(cut.dim), name(cut.unit));
}

std::string write_plan(const Plan& plan, const PlanRemarks& remarks, const std::string& head) {
  std::string out = head;
  out += fmt::format("{{ \"name\": {}, \"mesh\": {}", quoted(plan.name), Json(plan.mesh).dump());
  const auto flat = plan.families.find("");
  if (flat != plan.families.end()) {
    for (const std::string& member : members_of(flat->second, remarks, "  "))
      out += ",\n  " + member;
    return out + " }\n";
  }
  std::vector<std::string> families;
  for (const auto& [family, section] : plan.families) {
    families.push_back(fmt::format("    {}: {{\n      {} }}", quoted(family),
                                   fmt::join(members_of(section, remarks, "      "), ",\n      ")));
  }
  return out + fmt::format(",\n  \"families\": {{\n{} }} }}\n", fmt::join(families, ",\n"));
}

}  // namespace shardcheck
