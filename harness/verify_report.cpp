// SPDX-License-Identifier: Apache-2.0
// What `verify` prints: an aligned table and failures in words for people, JSON for machines.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "harness/failure_text.hpp"
#include "harness/report_json.hpp"
#include "harness/verify.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

std::string margin_text(double margin) {
  if (std::isinf(margin)) return "inf";
  return margin >= 1000.0 ? fmt::format("{:.1e}x", margin) : fmt::format("{:.3g}x", margin);
}

std::string gate_text(const GateResult& gate) {
  if (!gate.ran) return "-";
  if (!gate.passed) return "FAIL";
  return gate.margin ? margin_text(*gate.margin) : "ok";
}

std::string ratio(double measured, double limit) {
  return fmt::format("{:.3g} of {:g}", measured, limit);
}

class Table {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text(bool color) const {
    std::vector<std::size_t> width;
    for (const auto& row : rows_) {
      width.resize(std::max(width.size(), row.size()), 0);
      for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    }
    std::string out;
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) {
        std::string cell = row[i];
        if (i + 1 < row.size()) cell.resize(width[i], ' ');
        if (color && (row[i] == "FAIL" || row[i] == "failed" || row[i] == "mistrusted"))
          cell = "\x1b[31m" + cell + "\x1b[0m";
        if (color && row[i] == "passed") cell = "\x1b[32m" + cell + "\x1b[0m";
        line += cell + (i + 1 < row.size() ? "  " : "");
      }
      out += line + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string failure_text(const CellReport& cell) {
  std::string out = fmt::format("\n{} {} {}: {}\n", to_string(cell.mesh), name(cell.dtype),
                                name(cell.phase), name(cell.verdict));
  if (cell.first) {
    const FirstFailure& first = *cell.first;
    out += fmt::format("  first wrong tap  {} ({}, gate {}: {}), {} step {}\n", first.tap,
                       ranks_text(first.ranks, first.all_ranks), name(first.gate), description(first.gate),
                       name(first.phase), first.step);
    if (first.row >= 0) {
      out += fmt::format(
          "  element          token row {}, feature {} (in the rank's part: {}, {}): got {:.9g}, "
          "expected {:.9g}\n",
          first.row, first.feature, first.local_row, first.local_feature, first.got, first.expected);
    }
    out += cause_lines(first, cell.mesh);
  }
  for (std::size_t i = 0; i < cell.mistrust.size() && i < 3; ++i) {
    out += fmt::format("  mistrusted       {}\n", cell.mistrust[i]);
  }
  if (cell.mistrust.size() > 3)
    out += fmt::format("  mistrusted       and {} more taps\n", cell.mistrust.size() - 3);
  return cell.repro.empty() ? out : out + fmt::format("  repeat           {}\n", cell.repro);
}

std::string summary(const VerifyReport& report) {
  std::string line = fmt::format("{} passed, {} failed", report.count(Verdict::passed),
                                 report.count(Verdict::failed) + report.count(Verdict::mistrusted));
  if (report.count(Verdict::mistrusted) > 0)
    line += fmt::format(" ({} mistrusted)", report.count(Verdict::mistrusted));
  if (report.count(Verdict::skipped) > 0)
    line += fmt::format(", {} skipped", report.count(Verdict::skipped));
  return line;
}

}  // namespace

std::string verify_table(const VerifyReport& report, bool color) {
  Table table;
  table.row({"mesh", "dtype", "wire", "phase", "verdict", "G0", "audit", "G1", "G2", "G3", "G4",
             "G5", "logits error", "smallest G3 margin: A, B, C (tap, rank)"});
  for (const CellReport& cell : report.cells) {
    std::vector<std::string> row{to_string(cell.mesh), std::string(name(cell.dtype)),
                                 std::string(name(cell.wire)), std::string(name(cell.phase)),
                                 std::string(name(cell.verdict))};
    for (const Gate gate : kGates) row.push_back(gate_text(cell.gates.at(gate)));
    const Gate end = cell.gates.at(Gate::g2).ran ? Gate::g2 : Gate::g4;
    row.push_back(fmt::format("{:.2e}", end == Gate::g2 ? cell.logits.rel_max : cell.logits.rel_fro));
    row.push_back(cell.worst ? fmt::format("{}, {}, {} ({}, rank {})",
                                           ratio(cell.worst->a, cell.worst->limits.a),
                                           ratio(cell.worst->b, cell.worst->limits.b),
                                           ratio(cell.worst->c, cell.worst->limits.c),
                                           cell.worst->tap, cell.worst->rank)
                             : "-");
    table.row(std::move(row));
  }
  std::string out = fmt::format("{} under plan {}\n", report.model, report.plan);
  for (const std::string& note : report.notes) out += "note: " + note + "\n";
  out += table.text(color);
  out += "\nA number is a margin, limit over measured; ok: bitwise; -: not run.\n";
  for (const Gate gate : kGates) out += fmt::format("  {:<6} {}\n", name(gate), description(gate));
  for (const auto& [dtype, statement] : report.arithmetic)
    out += fmt::format("  {:<6} {}\n", dtype, statement);
  for (const CellReport& cell : report.cells) {
    if (cell.verdict != Verdict::passed) out += failure_text(cell);
  }
  return out + "\n" + summary(report) + "\n";
}

std::string verify_json(const VerifyReport& report) {
  Json json;
  json["schema"] = "shardcheck.verify/1";
  json["model"] = report.model;
  json["plan"] = report.plan;
  json["arithmetic"] = report.arithmetic;
  json["notes"] = report.notes;
  json["findings"] = findings_json(report.findings);
  json["cells"] = Json::array();
  for (const CellReport& cell : report.cells) {
    Json c;
    c["mesh"] = mesh_json(cell.mesh);
    c["dtype"] = name(cell.dtype);
    c["wire"] = name(cell.wire);
    c["phase"] = name(cell.phase);
    c["verdict"] = name(cell.verdict);
    for (const Gate gate : kGates) {
      const GateResult& result = cell.gates.at(gate);
      c["gates"][std::string(name(gate))] = {
          {"ran", result.ran},
          {"passed", result.ran ? Json(result.passed) : Json(nullptr)},
          {"margin", result.ran && result.margin ? json_number(*result.margin) : Json(nullptr)}};
    }
    c["first"] = cell.first ? first_failure_json(*cell.first) : Json(nullptr);
    if (cell.worst) {
      const TapScore& w = *cell.worst;
      c["worst"] = {{"tap", w.tap},
                    {"rank", w.rank},
                    {"A", json_number(w.a)},
                    {"B", json_number(w.b)},
                    {"C", json_number(w.c)},
                    {"limits", {{"A", w.limits.a}, {"B", w.limits.b}, {"C", w.limits.c}}}};
    } else {
      c["worst"] = nullptr;
    }
    const EndToEnd& e = cell.logits;
    c["end_to_end"] = {{"rel_fro", json_number(e.rel_fro)},
                       {"rel_max", json_number(e.rel_max)},
                       {"kl_mean", json_number(e.kl_mean)},
                       {"kl_max", json_number(e.kl_max)},
                       {"top1_agree", json_number(e.top1_agree)}};
    c["mistrusted"] = cell.mistrust;
    c["collectives"] = {{"calls", cell.collectives}, {"payload_bytes", cell.payload_bytes}};
    c["repro"] = cell.repro;
    json["cells"].push_back(std::move(c));
  }
  json["summary"] = {{"passed", report.count(Verdict::passed)},
                     {"failed", report.count(Verdict::failed)},
                     {"skipped", report.count(Verdict::skipped)},
                     {"mistrusted", report.count(Verdict::mistrusted)}};
  return json.dump(1) + "\n";
}

}  // namespace shardcheck
