// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "harness/faults/kill_table.hpp"
#include "harness/report_json.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

/// "12", "11/12" where some were missed, "12 (3)" with those below rounding; "-" where it is not the gate's job.
std::string cell(const std::map<FaultGate, GateScore>& scores, FaultGate gate) {
  const auto found = scores.find(gate);
  if (found == scores.end()) return "-";
  const GateScore& score = found->second;
  if (score.counted() + score.below_rounding == 0) return "-";
  std::string text = score.missed == 0 ? fmt::format("{}", score.caught)
                                       : fmt::format("{}/{}", score.caught, score.counted());
  if (score.below_rounding > 0) text += fmt::format(" ({})", score.below_rounding);
  return text;
}

std::string share(std::int64_t part, std::int64_t whole) {
  return whole == 0
             ? "-"
             : fmt::format("{:.0f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string ranks_text(const WrongTap& wrong, const Mesh& mesh) {
  if (wrong.tap.empty()) return "nothing";
  if (static_cast<int>(wrong.ranks.size()) == mesh.ranks()) return wrong.tap + " of all ranks";
  return fmt::format("{} of rank {}", wrong.tap, fmt::join(wrong.ranks, ", "));
}

bool is_wrong(const FaultRow& row) {
  return row.status == FaultStatus::missed || (row.caught() && !row.first_is_right());
}

}  // namespace

std::string faults_table(const FaultReport& report) {
  std::string out = fmt::format("{:<30} {:>5}", "fault", "spots");
  for (const FaultGate gate : kFaultGates) out += fmt::format(" {:>9}", name(gate));
  out += fmt::format("  {:>6} {:>6}\n", "first", "cause");
  char kind = 0;
  for (const Fault& fault : report.catalogue) {
    const auto scores = report.scores(fault.name);
    if (report.spots(fault.name) == 0) continue;
    if (fault.kind != kind) out += fmt::format("kind {}\n", fault.kind);
    kind = fault.kind;
    out += fmt::format("  {:<28} {:>5}", fault.name, report.spots(fault.name));
    std::int64_t caught = 0, right = 0, causes = 0, cause_right = 0;
    for (const FaultGate gate : kFaultGates) out += fmt::format(" {:>9}", cell(scores, gate));
    for (const auto& [gate, score] : scores) {
      if (gate == FaultGate::lint) continue;
      caught += score.caught;
      right += score.first_right;
      causes += score.causes;
      cause_right += score.cause_right;
    }
    out += fmt::format("  {:>6} {:>6}\n", share(right, caught), share(cause_right, causes));
  }
  for (const FaultRow& row : report.rows) {
    if (!is_wrong(row)) continue;
    out += fmt::format("{} {} at {} of {} under {}, {}: {}; expected {}{}\n", name(row.gate),
                       row.status == FaultStatus::missed ? "misses" : "misplaces", row.spot.place,
                       row.model, row.plan, to_string(row.mesh), row.fault,
                       ranks_text(row.expected, row.mesh),
                       row.caught() ? ", named " + ranks_text(row.first, row.mesh) : std::string());
  }
  for (const std::string& alarm : report.alarms) out += "false alarm: " + alarm + "\n";
  out += "\n";
  std::int64_t causes = 0, cause_right = 0;
  for (const auto& [gate, score] : report.scores()) {
    if (score.counted() + score.below_rounding == 0) continue;
    out += fmt::format("{:<5} {} of {} caught", name(gate), score.caught, score.counted());
    if (score.below_rounding > 0) out += fmt::format(", {} below rounding", score.below_rounding);
    if (gate != FaultGate::lint)
      out += fmt::format("; first value right in {} of {}", score.first_right, score.caught);
    if (score.causes > 0) {
      out += fmt::format("; {} right in {} of {}", gate == FaultGate::lint ? "rule" : "cause",
                         score.cause_right, score.causes);
    }
    out += "\n";
    if (gate == FaultGate::lint) continue;
    causes += score.causes;
    cause_right += score.cause_right;
  }
  std::int64_t planted = 0, spots = 0;
  for (const Fault& fault : report.catalogue) {
    const std::int64_t here = report.spots(fault.name);
    spots += here;
    if (here > 0) ++planted;
  }
  out += fmt::format("{} faults at {} spots; cause right in {}; {} legal runs, {} false alarm{}\n",
                     planted, spots, share(cause_right, causes), report.legal_runs,
                     report.alarms.size(), report.alarms.size() == 1 ? "" : "s");
  return out;
}

std::string catalogue_table(const std::vector<Fault>& faults) {
  std::string out;
  for (const Fault& fault : faults) {
    out += fmt::format("{} {:<28} {:<10} {}\n", fault.kind, fault.name, name(fault.layer), fault.what);
    out += fmt::format("  {:<28} {:<10} after {}\n", "", "", fault.source);
  }
  out += fmt::format("{} faults\n", faults.size());
  return out;
}

std::string faults_json(const FaultReport& report) {
  Json json;
  json["schema"] = "shardcheck.faults/1";
  json["plan"] = report.plan;
  json["models"] = report.models;
  json["verdict"] = report.passed() ? "passed" : "failed";
  json["rows"] = Json::array();
  const auto place = [](const WrongTap& wrong) {
    return wrong.tap.empty() ? Json(nullptr) : Json({{"tap", wrong.tap}, {"ranks", wrong.ranks}});
  };
  for (const FaultRow& row : report.rows) {
    json["rows"].push_back(
        {{"fault", row.fault},
         {"kind", std::string(1, row.kind)},
         {"source", row.source},
         {"layer", name(row.layer)},
         {"model", row.model},
         {"plan", row.plan},
         {"site", {{"place", row.spot.place}, {"rank", row.spot.rank}, {"phase", name(row.spot.phase)}}},
         {"mesh", mesh_json(row.mesh)},
         {"gate", name(row.gate)},
         {"caught", row.caught()},
         {"first", place(row.first)},
         {"expected_first", place(row.expected)},
         {"cause", row.cause},
         {"expected_cause", row.expected_cause},
         {"margin", json_number(row.margin)},
         {"status", name(row.status)},
         {"note", row.note}});
  }
  Json gates;
  for (const auto& [gate, score] : report.scores()) {
    gates[std::string(name(gate))] = {{"caught", score.caught},
                                      {"missed", score.missed},
                                      {"below_rounding", score.below_rounding},
                                      {"first_right", score.first_right},
                                      {"cause_right", score.cause_right},
                                      {"causes", score.causes}};
  }
  json["gates"] = gates;
  json["legal_runs"] = report.legal_runs;
  json["false_alarms"] = report.alarms.size();
  json["alarms"] = report.alarms;
  json["notes"] = report.notes;
  return json.dump(1) + "\n";
}

}  // namespace shardcheck
