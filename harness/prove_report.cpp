// SPDX-License-Identifier: Apache-2.0
// What `shardcheck prove` prints, and its JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "harness/prove.hpp"
#include "harness/report_json.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

std::string ranks_text(const std::vector<int>& ranks, bool all) {
  if (all) return "all ranks";
  if (ranks.empty()) return "no rank alone";
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string shape_text(const Config& c) {
  return fmt::format(
      "{} layer{}, hidden {}, {} heads, {} kv heads, head_dim {}, intermediate {}, vocab {}",
      c.num_layers, c.num_layers == 1 ? "" : "s", c.hidden_size, c.num_heads, c.num_kv_heads,
      c.head_dim, c.intermediate_size, c.vocab_size);
}

std::string verdict_text(const ProveCell& cell) {
  if (cell.verdict == ProofVerdict::wrong) return "WRONG";
  if (cell.verdict == ProofVerdict::unproven) return "UNPROVEN";
  // The power of two above the chance.
  return fmt::format("equal (chance of a false equal < 2^{})",
                     static_cast<int>(std::floor(cell.log2_chance)) + 1);
}

/// Digits that tell the numbers of an example apart: 6, or all where 6 would print a rank's value as the whole's.
int digits_of(const Counterexample& e) {
  const auto text = [](double value) { return fmt::format("{:.6g}", value); };
  for (const Counterexample::Share& share : e.shares) {
    for (std::size_t f = 0; f < std::min(e.whole.size(), share.values.size()); ++f) {
      if (share.values[f] && text(*share.values[f]) != text(e.whole[f])) return 6;
    }
  }
  return 17;
}

std::string example_text(const Counterexample& e) {
  std::string out = fmt::format(
      "  counter-example in f64 ({}): {}\n",
      e.integers ? "small integers" : "weights and activations of this network", shape_text(e.shape));
  const auto shown = static_cast<std::int64_t>(e.shares.empty() ? 0 : e.shares.front().values.size());
  out += fmt::format("  {} of {}, placed {}; {} step {}, token {}, features {} to {} of {}\n",
                     e.tap, e.op, e.placement, name(e.phase), e.step, e.row, e.first_feature,
                     e.first_feature + shown - 1, e.features);
  const int digits = digits_of(e);
  const auto number_text = [digits](double value) { return fmt::format("{:.{}g}", value, digits); };
  std::vector<std::vector<std::string>> rows;
  if (!e.whole.empty()) {
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{"whole"});
    for (const double value : e.whole) row.push_back(number_text(value));
  }
  for (const Counterexample::Share& share : e.shares) {
    std::vector<std::string>& row = rows.emplace_back(
        std::vector<std::string>{fmt::format("rank {}", share.rank)});
    for (const std::optional<double>& value : share.values)
      row.push_back(value ? number_text(*value) : "-");
  }
  if (e.placement == "P(sum)") {
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{"sum"});
    for (std::int64_t f = 0; f < shown; ++f) {
      double sum = 0.0;
      for (const Counterexample::Share& share : e.shares)
        sum += share.values[static_cast<std::size_t>(f)].value_or(0.0);
      row.push_back(number_text(sum));
    }
  }
  std::size_t first = 0, width = 0;
  for (const std::vector<std::string>& row : rows) {
    first = std::max(first, row[0].size());
    for (std::size_t i = 1; i < row.size(); ++i) width = std::max(width, row[i].size());
  }
  for (const std::vector<std::string>& row : rows) {
    out += fmt::format("    {:<{}}", row[0], first);
    for (std::size_t i = 1; i < row.size(); ++i) out += fmt::format("  {:>{}}", row[i], width);
    out += "\n";
  }
  return out;
}

/// Empty where there is nothing to say. `shown` are the examples printed so far: both phases often have one and the
/// same.
std::string cell_text(const ProveCell& cell, std::vector<std::string>& shown) {
  if (cell.verdict == ProofVerdict::equal) return {};
  std::string out = fmt::format("{} {}: ", to_string(cell.mesh), name(cell.phase));
  out += verdict_text(cell);
  if (cell.first) {
    const FirstDifference& first = *cell.first;
    out += fmt::format(" at {}, first in {} step {}, {}", first.tap, name(first.phase), first.step,
                       ranks_text(first.ranks, first.all_ranks));
    if (first.row >= 0) out += fmt::format(", token {}, feature {}", first.row, first.feature);
    if (!first.problem.empty()) out += fmt::format(": {}", first.problem);
  }
  out += "\n";
  if (!cell.reason.empty()) out += fmt::format("  {}\n", cell.reason);
  if (!cell.counterexample) return out;
  const std::string example = example_text(*cell.counterexample);
  if (std::find(shown.begin(), shown.end(), example) != shown.end())
    return out + "  counter-example: the one above\n";
  shown.push_back(example);
  return out + example;
}

Json shape_json(const Config& c) {
  return {{"layers", c.num_layers}, {"hidden", c.hidden_size},
          {"heads", c.num_heads},   {"kv_heads", c.num_kv_heads},
          {"head_dim", c.head_dim}, {"intermediate", c.intermediate_size},
          {"vocab", c.vocab_size}};
}

Json first_json(const FirstDifference& first) {
  Json index = nullptr;
  if (first.row >= 0) index = {{"row", first.row}, {"feature", first.feature}};
  return {{"tap", first.tap},   {"phase", name(first.phase)},
          {"step", first.step}, {"ranks", first.ranks},
          {"index", index},     {"problem", first.problem}};
}

Json example_json(const Counterexample& e) {
  Json shares = Json::array();
  for (const Counterexample::Share& share : e.shares) {
    Json values = Json::array();
    for (const std::optional<double>& value : share.values)
      values.push_back(value ? json_number(*value) : Json(nullptr));
    shares.push_back({{"rank", share.rank}, {"values", values}});
  }
  Json whole = Json::array();
  for (const double value : e.whole) whole.push_back(json_number(value));
  return {{"shape", shape_json(e.shape)},
          {"tap", e.tap},
          {"op", e.op},
          {"placement", e.placement},
          {"integers", e.integers},
          {"phase", name(e.phase)},
          {"step", e.step},
          {"row", e.row},
          {"first_feature", e.first_feature},
          {"features", e.features},
          {"whole", whole},
          {"shares", shares}};
}

}  // namespace

std::string prove_text(const ProveReport& report) {
  std::string out = fmt::format("{} under plan {}\n\n", report.model, report.plan);
  std::size_t mesh = 4, phase = 5;
  for (const ProveCell& cell : report.cells) {
    mesh = std::max(mesh, to_string(cell.mesh).size());
    phase = std::max(phase, name(cell.phase).size());
  }
  std::size_t verdict = 7;
  for (const ProveCell& cell : report.cells) verdict = std::max(verdict, verdict_text(cell).size());
  out += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>5}  {:>6}  {}\n", "mesh", mesh, "phase", phase,
                     "verdict", verdict, "seeds", "values", "shape");
  for (const ProveCell& cell : report.cells) {
    out += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>5}  {:>6}  {}\n", to_string(cell.mesh), mesh,
                       name(cell.phase), phase, verdict_text(cell), verdict, cell.seeds, cell.taps,
                       shape_text(cell.shape));
  }
  std::vector<std::string> shown;
  for (const ProveCell& cell : report.cells) {
    const std::string words = cell_text(cell, shown);
    if (!words.empty()) out += "\n" + words;
  }
  const auto count = [&](ProofVerdict wanted) {
    return std::count_if(report.cells.begin(), report.cells.end(),
                         [&](const ProveCell& cell) { return cell.verdict == wanted; });
  };
  return out + fmt::format("\n{} equal, {} wrong, {} unproven\n", count(ProofVerdict::equal),
                           count(ProofVerdict::wrong), count(ProofVerdict::unproven));
}

std::string prove_json(const ProveReport& report) {
  Json json;
  json["schema"] = "shardcheck.prove/1";
  json["model"] = report.model;
  json["plan"] = report.plan;
  json["verdict"] = report.passed() ? "passed" : "failed";
  json["ran"] = report.ran;
  json["findings"] = findings_json(report.findings);
  json["cells"] = Json::array();
  for (const ProveCell& cell : report.cells) {
    json["cells"].push_back(
        {{"mesh", mesh_json(cell.mesh)},
         {"phase", name(cell.phase)},
         {"verdict", name(cell.verdict)},
         {"log2_chance", json_number(cell.log2_chance)},
         {"seeds", cell.seeds},
         {"values", cell.taps},
         {"shrunk", cell.shrunk},
         {"shape", shape_json(cell.shape)},
         {"first", cell.first ? first_json(*cell.first) : Json(nullptr)},
         {"reason", cell.reason},
         {"counterexample", cell.counterexample ? example_json(*cell.counterexample) : Json(nullptr)}});
  }
  return json.dump(1) + "\n";
}

}  // namespace shardcheck
