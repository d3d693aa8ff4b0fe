// SPDX-License-Identifier: Apache-2.0
// The explanation of a plan as tables with sentences, and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/lint.hpp"
#include "harness/plan_explain.hpp"
#include "harness/report_json.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;
using Kind = CollectiveStep::Kind;

constexpr std::size_t kMostRanksShown = 4;

/// Columns as wide as their widest cell, two spaces apart.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}} ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

/// "layers.*.mlp.up_proj" inside a group of layers: "mlp.up_proj".
std::string short_path(const std::string& path) {
  const std::size_t star = path.find(".*.");
  return star == std::string::npos ? path : path.substr(star + 3);
}

std::string shape(const Module& module) {
  return module.kind == ModuleKind::norm ? fmt::format("[{}]", module.out)
                                         : fmt::format("[{}, {}]", module.out, module.in);
}

bool is_whole(const ExplainedModule& module) {
  return std::all_of(module.shares.begin(), module.shares.end(),
                     [](const ExplainedShare& share) { return share.words == "whole"; });
}

std::vector<std::size_t> shown_ranks(std::size_t ranks) {
  std::vector<std::size_t> shown;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (ranks <= kMostRanksShown || rank < 2 || rank + 1 == ranks) shown.push_back(rank);
  }
  return shown;
}

std::string step_words(const ExplainedStep& step) {
  const std::string where = step.point.substr(step.point.rfind('.') + 1);
  const std::string when = step.phases.find(',') == std::string::npos ? " in " + step.phases : "";
  return fmt::format(
      "{}: {}{}, {}", where, step.words, when,
      step.kind == Kind::slice ? "nothing sent" : fmt::format("{} B", step.bytes_per_token));
}

std::string group_table(const ExplainedGroup& group, std::size_t ranks) {
  const std::vector<std::size_t> shown = shown_ranks(ranks);
  std::vector<std::vector<std::string>> rows(1, {"module", "weight", "the plan says"});
  for (const std::size_t rank : shown) rows[0].push_back(fmt::format("rank {} holds", rank));
  rows[0].push_back("sent, per token");
  for (const ExplainedModule& module : group.modules) {
    std::vector<std::string> row{short_path(module.path), shape(module.module), module.cut};
    for (const std::size_t rank : shown) row.push_back(module.shares[rank].words);
    row.push_back(module.steps.empty() ? "-" : step_words(module.steps[0]));
    const std::size_t cells = row.size();
    rows.push_back(std::move(row));
    for (std::size_t i = 1; i < module.steps.size(); ++i) {
      rows.emplace_back(cells, "");
      rows.back().back() = step_words(module.steps[i]);
    }
  }
  return table(rows);
}

/// What a module's cut means for its output, after "q_proj is" or "q_proj and k_proj are"; empty where it is whole.
std::string cut_sentence(const ExplainedModule& module) {
  if (is_whole(module)) return "";
  const bool rows = std::any_of(
      module.shares.begin(), module.shares.end(),
      [&](const ExplainedShare& s) { return total(s.rows) != module.module.out; });
  const bool cols = std::any_of(
      module.shares.begin(), module.shares.end(),
      [&](const ExplainedShare& s) { return total(s.cols) != module.module.in; });
  if (module.module.kind == ModuleKind::embedding && rows && cols) {
    return "cut both ways: a rank looks up its part of each row whose id is among its own, and has zeros for all others, "
           "so the results of ranks with the same part add up to it.";
  }
  if (module.module.kind == ModuleKind::embedding && rows) {
    return "vocabulary-parallel: a rank looks up the ids among its rows and has zeros for all "
           "others, so the ranks' "
           "results add up to the value.";
  }
  if (module.module.kind == ModuleKind::embedding)
    return "cut by features: a rank looks up its part of each token's row.";
  if (module.module.kind == ModuleKind::norm)
    return "cut: a rank has the weights of its own features.";
  if (rows && cols) {
    return "cut both ways: a rank multiplies its part of the input with its part of its own rows, "
           "and has a share of "
           "the sums of its own output features.";
  }
  if (rows) {
    return "column-parallel: a rank multiplies the whole input with its own rows, and has its own "
           "part of the output "
           "features. That needs no exchange.";
  }
  return "row-parallel: a rank multiplies its own part of the input with its own columns, and has "
         "a share of every "
         "sum." +
         std::string(module.module.has_bias ? " The bias is added once, after the sum." : "");
}

/// "a is", "a and b are", "a, b and c are".
std::string with_verb(const std::vector<std::string>& names) {
  if (names.size() == 1) return names[0] + " is ";
  const std::vector<std::string> before(names.begin(), names.end() - 1);
  return fmt::format("{} and {} are ", fmt::join(before, ", "), names.back());
}

std::string step_sentence(const ExplainedStep& step) {
  const char* what = "";
  switch (step.kind) {
    case Kind::all_reduce:
      if (step.op == ReduceOp::max) {
        what = step.in_groups ? "takes the largest of the values of each group of ranks"
                              : "takes the largest of the ranks' values, and every rank has it";
      } else {
        what = step.in_groups
                   ? "adds the shares of each group of ranks, and every rank of a group has its sum"
                   : "adds the ranks' shares, and every rank has the whole result";
      }
      break;
    case Kind::reduce_scatter:
      what = "adds the ranks' shares, and each rank keeps its part of the result";
      break;
    case Kind::all_gather:
      what = step.in_groups
                 ? "puts the parts of each group of ranks together, and every rank of a group has them all"
                 : "puts the ranks' parts together, and every rank has the whole";
      break;
    case Kind::all_to_all:
      what = "trades parts, so that the value is cut along another dimension";
      break;
    case Kind::broadcast:
      what = "gives every rank what one has";
      break;
    case Kind::slice:
      what = "keeps each rank's part of what all have; nothing is sent";
      break;
  }
  return fmt::format("{} at {} {}.", step.words, short_path(step.point), what);
}

/// Sentences in forward order; neighbours of one kind with no exchange between them share one.
std::string group_words(const ExplainedGroup& group) {
  std::string out, sentence;
  std::vector<std::string> names;
  const auto close = [&] {
    if (!names.empty()) out += "    " + with_verb(names) + sentence + "\n";
    names.clear();
  };
  const auto add_steps = [&](const ExplainedModule& module, std::string_view point) {
    for (const ExplainedStep& step : module.steps) {
      if (!step.point.ends_with(point)) continue;
      close();
      out += "    " + step_sentence(step) + "\n";
    }
  };
  for (const ExplainedModule& module : group.modules) {
    add_steps(module, ".in");
    add_steps(module, ".stat");
    const std::string own = cut_sentence(module);
    if (own != sentence || own.empty()) close();
    sentence = own;
    if (!own.empty()) names.push_back(short_path(module.path));
    add_steps(module, ".out");
  }
  close();
  return out;
}

std::string title(const ExplainedGroup& group, bool before) {
  if (group.layers.empty()) return before ? "Before the layers" : "After the layers";
  return fmt::format("Layer{} {}{}", group.layers.size() == 1 ? "" : "s", layers_text(group.layers),
                     group.layers.size() == 1 ? "" : fmt::format(", {} alike", group.layers.size()));
}

std::int64_t sent_per_token(const PlanExplanation& explanation, std::string_view phase,
                            std::size_t& calls) {
  std::int64_t bytes = 0;
  calls = 0;
  for (const ExplainedGroup& group : explanation.groups) {
    const std::size_t times = std::max<std::size_t>(group.layers.size(), 1);
    for (const ExplainedModule& module : group.modules) {
      for (const ExplainedStep& step : module.steps) {
        if (step.phases.find(phase) == std::string::npos || step.kind == Kind::slice) continue;
        bytes += step.bytes_per_token * static_cast<std::int64_t>(times);
        calls += times;
      }
    }
  }
  return bytes;
}

bool sums_statistic(const PlanExplanation& explanation, std::string_view phase) {
  for (const ExplainedGroup& group : explanation.groups) {
    for (const ExplainedModule& module : group.modules) {
      for (const ExplainedStep& step : module.steps) {
        if (step.point.ends_with(".stat") && step.phases.find(phase) != std::string::npos) return true;
      }
    }
  }
  return false;
}

Json json_of(const Ranges& ranges) {
  Json list = Json::array();
  for (const Range& range : ranges) list.push_back({range.begin, range.end});
  return list;
}

}  // namespace

std::string explain_text(const PlanExplanation& e) {
  std::string out = fmt::format("{} under plan {} at {}\n", e.model, e.plan, to_string(e.mesh));
  const auto ranks = static_cast<std::size_t>(e.mesh.ranks());
  bool before = true;
  for (const ExplainedGroup& group : e.groups) {
    out += "\n" + title(group, before) + "\n" + group_table(group, ranks);
    const std::string words = group_words(group);
    if (!words.empty()) out += "\n" + words;
    before = false;
  }
  const auto [least, most] = std::minmax_element(e.weights_of_rank.begin(), e.weights_of_rank.end());
  const auto percent = [&](std::int64_t elements) {
    return 100.0 * static_cast<double>(elements) /
           static_cast<double>(std::max<std::int64_t>(e.weights, 1));
  };
  const std::string share = *least == *most
                                ? fmt::format("{:.1f}", percent(*least))
                                : fmt::format("{:.1f} to {:.1f}", percent(*least), percent(*most));
  out += fmt::format("\nWeights: a rank holds {} % of the model's {} elements.\n", share, e.weights);
  for (const char* phase : {"prefill", "decode"}) {
    std::size_t calls = 0;
    const std::int64_t bytes = sent_per_token(e, phase, calls);
    out += fmt::format(
        "Sent in {}: {} collective{}, payload {} bytes per token at 2 bytes an element{}.\n", phase,
        calls, calls == 1 ? "" : "s", bytes, sums_statistic(e, phase) ? ", 4 in a statistic" : "");
  }
  for (const UncheckedRule& rule : e.unchecked)
    out += fmt::format("Not checked: {}, \"{}\": nothing here can say or test it yet.\n",
                       rule.pattern, rule.style);
  if (e.broken_rules > 0) {
    out += fmt::format("This plan breaks {} placement rule{}: shardcheck lint says which.\n",
                       e.broken_rules, e.broken_rules == 1 ? "" : "s");
  }
  return out;
}

std::string explain_json(const std::vector<PlanExplanation>& explanations) {
  Json json;
  json["schema"] = "shardcheck.plan/1";
  json["cells"] = Json::array();
  for (const PlanExplanation& e : explanations) {
    Json cell{{"model", e.model}, {"plan", e.plan}, {"mesh", mesh_json(e.mesh)}};
    cell["weights"] = e.weights;
    cell["weights_of_rank"] = e.weights_of_rank;
    cell["modules"] = Json::array();
    for (const ExplainedGroup& group : e.groups) {
      for (const ExplainedModule& module : group.modules) {
        Json entry{{"path", module.path},
                   {"layers", group.layers.empty() ? Json(nullptr) : Json(layers_text(group.layers))},
                   {"shape", {module.module.out, module.module.in}},
                   {"cut", module.cut},
                   {"rows", Json::array()},
                   {"columns", Json::array()},
                   {"steps", Json::array()}};
        for (const ExplainedShare& share : module.shares) {
          entry["rows"].push_back(json_of(share.rows));
          entry["columns"].push_back(json_of(share.cols));
        }
        for (const ExplainedStep& step : module.steps) {
          entry["steps"].push_back({{"point", step.point},
                                    {"step", step.words},
                                    {"phases", step.phases},
                                    {"bytes_per_token", step.bytes_per_token}});
        }
        cell["modules"].push_back(std::move(entry));
      }
    }
    cell["unchecked"] = Json::object();
    for (const UncheckedRule& rule : e.unchecked) cell["unchecked"][rule.pattern] = rule.style;
    cell["broken_rules"] = e.broken_rules;
    json["cells"].push_back(std::move(cell));
  }
  return json.dump(1) + "\n";
}

}  // namespace shardcheck
