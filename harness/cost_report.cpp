// SPDX-License-Identifier: Apache-2.0
#include "harness/cost_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "harness/report_json.hpp"

namespace shardcheck {

namespace {

using Json = nlohmann::ordered_json;
using sim::Bytes;
using sim::Constant;
using sim::CostRow;
using sim::Seconds;

struct Scale {
  double unit;
  std::string_view name;
};

// Three significant digits in the largest unit that leaves at least 1.
template <std::size_t N>
std::string scaled(double value, const std::array<Scale, N>& scales) {
  if (value == 0.0) return "0";
  const Scale* scale = &scales.back();
  for (const Scale& s : scales) {
    if (value >= s.unit) {
      scale = &s;
      break;
    }
  }
  const double shown = value / scale->unit;
  return fmt::format("{:.{}f} {}", shown, shown >= 99.95 ? 0 : shown >= 9.995 ? 1 : 2, scale->name);
}

std::string shown(Seconds time) {
  constexpr std::array<Scale, 4> scales{{{1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}}};
  return scaled(time.value, scales);
}

std::string shown(std::optional<Seconds> time) { return time ? shown(*time) : "-"; }

std::string shown(Bytes size) {
  constexpr std::array<Scale, 5> scales{
      {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1.0, "B"}}};
  return scaled(size.value, scales);
}

std::string shown(const Constant& constant) {
  const std::string value = std::visit([](const auto& v) { return fmt::format("{}", v); },
                                       constant.value);
  return fmt::format("{} {}{}{} ({})", constant.name, value, constant.unit == "1" ? "" : " ",
                     constant.unit == "1" ? "" : constant.unit, sim::name(constant.kind));
}

std::string shown(const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const Mesh::Axis& axis : mesh.axes)
    axes.push_back(fmt::format("{}={}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(axes, ","));
}

// Cells of a table; the first `left` columns and the last one stand left, the others right.
class Table {
 public:
  Table(std::vector<std::string> header, std::size_t left) : left_(left) { add(std::move(header)); }

  void add(std::vector<std::string> cells) {
    widths_.resize(std::max(widths_.size(), cells.size()), 0);
    for (std::size_t i = 0; i < cells.size(); ++i)
      widths_[i] = std::max(widths_[i], cells[i].size());
    lines_.push_back(std::move(cells));
  }
  void gap() { lines_.emplace_back(); }

  std::string text() const {
    std::string out;
    for (const auto& cells : lines_) {
      std::string line;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const bool to_left = i < left_ || i + 1 == widths_.size();
        line += to_left ? fmt::format("{:<{}}  ", cells[i], widths_[i])
                        : fmt::format("{:>{}}  ", cells[i], widths_[i]);
      }
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
  }

 private:
  std::size_t left_;
  std::vector<std::size_t> widths_;
  std::vector<std::vector<std::string>> lines_;
};

// Algorithms that any row has an all_reduce time for: the columns of the table.
std::vector<std::string_view> columns_of(const std::vector<CostRow>& rows) {
  std::vector<std::string_view> columns;
  for (const CostRow& row : rows) {
    for (const sim::AlgorithmTime& time : row.by_all_reduce) {
      if (time.time && std::find(columns.begin(), columns.end(), time.algorithm) == columns.end()) {
        columns.push_back(time.algorithm);
      }
    }
  }
  return columns;
}

std::string fits_cell(const sim::MemoryUse& memory) {
  return memory.fits() ? "yes" : fmt::format("no, {} short", shown(Bytes(-memory.free().value)));
}

bool same_run(const CostRow& a, const CostRow& b) { return a.mesh == b.mesh && a.phase == b.phase; }

bool communicates(const CostRow& row) { return !row.problem.empty() || !row.collectives.empty(); }

std::vector<std::string> cells_of(const CostRow& row, const std::vector<std::string_view>& columns) {
  const bool talks = communicates(row);
  std::vector<std::string> cells{talks ? row.link : "(any link)", shown(row.mesh),
                                 std::string(name(row.phase)), shown(row.compute)};
  cells.push_back(shown(row.communication));
  const auto share = row.share();
  cells.push_back(share ? fmt::format("{:.1f} %", *share * 100.0) : "-");
  cells.push_back(row.phase == Phase::prefill ? shown(row.total()) : "");
  cells.push_back(row.phase == Phase::decode ? shown(row.per_step()) : "");
  for (const std::string_view column : columns) {
    const auto found = std::find_if(
        row.by_all_reduce.begin(), row.by_all_reduce.end(),
        [&](const sim::AlgorithmTime& t) { return t.algorithm == column; });
    cells.push_back(talks && found != row.by_all_reduce.end() ? shown(found->time) : "-");
  }
  const std::string cheapest = row.cheapest_all_reduce();
  cells.push_back(cheapest.empty() ? "-" : cheapest);
  cells.push_back(shown(row.traffic));
  cells.push_back(shown(row.memory.weights));
  cells.push_back(shown(row.memory.kv_cache));
  cells.push_back(fits_cell(row.memory) + (row.problem.empty() ? "" : "; " + row.problem));
  return cells;
}

Json json_of(const Constant& constant) {
  Json json;
  json["name"] = constant.name;
  std::visit([&](const auto& value) { json["value"] = value; }, constant.value);
  if (!constant.unit.empty()) json["unit"] = constant.unit;
  if (constant.direction) json["direction"] = sim::name(*constant.direction);
  json["kind"] = sim::name(constant.kind);
  json["source"] = constant.source;
  return json;
}

Json json_of(const std::vector<Constant>& constants) {
  Json json = Json::array();
  for (const Constant& constant : constants) json.push_back(json_of(constant));
  return json;
}

Json json_of(std::optional<Seconds> time) { return time ? Json(time->value) : Json(nullptr); }

Json json_of(const std::vector<sim::AlgorithmTime>& times) {
  Json json = Json::object();
  for (const sim::AlgorithmTime& time : times)
    json[std::string(time.algorithm)] = json_of(time.time);
  return json;
}

Json json_of(const sim::KindCost& kind) {
  Json json;
  json["kind"] = name(kind.kind);
  json["group"] = kind.group;
  json["ranks"] = kind.ranks;
  json["calls"] = kind.calls;
  json["payload_bytes"] = kind.payload.value;
  json["bytes_per_rank"] = kind.traffic.value;
  json["bound_s"] = kind.bound.value;
  json["time_s"] = kind.time.value;
  json["cheapest"] = kind.cheapest;
  json["terms"] = Json::array();
  for (const sim::CommunicationTerm& term : kind.terms) {
    json["terms"].push_back(
        {{"algorithm", term.algorithm}, {"term", term.term}, {"time_s", term.time.value}});
  }
  json["algorithms_s"] = json_of(kind.algorithms);
  return json;
}

Json json_of(const CostRow& row) {
  Json json;
  json["mesh"] = mesh_json(row.mesh);
  json["phase"] = name(row.phase);
  json["link"] = row.link;
  json["problem"] = row.problem.empty() ? Json(nullptr) : Json(row.problem);
  json["rank"] = row.rank;
  json["steps"] = row.steps;
  json["compute_s"] = row.compute.value;
  json["communication_s"] = json_of(row.communication);
  json["total_s"] = json_of(row.total());
  const auto share = row.share();
  json["share"] = share ? Json(*share) : Json(nullptr);
  json["ttft_s"] = row.phase == Phase::prefill ? json_of(row.total()) : Json(nullptr);
  json["tpot_s"] = row.phase == Phase::decode ? json_of(row.per_step()) : Json(nullptr);
  json["bytes_per_rank"] = row.traffic.value;
  json["communication_by_all_reduce_s"] = json_of(row.by_all_reduce);
  const std::string cheapest = row.cheapest_all_reduce();
  json["cheapest_all_reduce"] = cheapest.empty() ? Json(nullptr) : Json(cheapest);
  json["compute_terms"] = Json::array();
  for (const sim::ComputeTerm& term : row.compute_terms) {
    json["compute_terms"].push_back({{"what", term.what},
                                     {"limited_by", sim::name(term.limited_by)},
                                     {"count", term.count},
                                     {"time_s", term.time.value}});
  }
  json["collectives"] = Json::array();
  for (const sim::KindCost& kind : row.collectives) json["collectives"].push_back(json_of(kind));
  json["memory"] = {{"rank", row.memory.rank},
                    {"weights_bytes", row.memory.weights.value},
                    {"kv_cache_bytes", row.memory.kv_cache.value},
                    {"reserve_bytes", row.memory.reserve.value},
                    {"capacity_bytes", row.memory.capacity.value},
                    {"fits", row.memory.fits()}};
  return json;
}

}  // namespace

std::string cost_table(const CostReport& report) {
  std::vector<std::string_view> columns = columns_of(report.rows);
  std::vector<std::string> header{"link", "mesh",  "phase", "compute",
                                  "comm", "share", "TTFT",  "TPOT"};
  for (const std::string_view column : columns) header.emplace_back(column);
  for (const char* title : {"cheapest", "bytes/rank", "weights", "KV", "fits"})
    header.emplace_back(title);
  Table table(header, 3);
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const CostRow& row = report.rows[i];
    const bool first = i == 0 || !same_run(report.rows[i - 1], row);
    if (first) table.gap();
    if (first || communicates(row)) table.add(cells_of(row, columns));
  }

  std::string out = fmt::format(
      "{}, plan {}{}, {} on the wire {}, batch {}, sequence {}, on {}\n\n", report.model,
      report.plan, report.fused ? " fused" : "", report.dtype, report.wire, report.batch,
      report.sequence, report.gpu.title);
  out += table.text();
  out +=
      "\ncompute: roofline of the slowest rank, no kernel starts and no losses, so a lower bound. "
      "comm: every "
      "collective by its fastest schedule,\nnothing overlaps. The columns named after schedules: "
      "comm with every "
      "all_reduce by that one. bytes/rank: payload x f, what the bound counts.\nweights and KV are "
      "per GPU; fits: "
      "with the reserve below.\n";
  out += fmt::format("{}:", report.gpu.name);
  for (const Constant& constant : report.gpu.constants) {
    const bool other_dtype = constant.name.starts_with("peak.") &&
                             constant.name != "peak." + report.dtype;
    if (!other_dtype) out += fmt::format(" {},", shown(constant));
  }
  out += fmt::format(" {}.\nSources of these and of every link's numbers: --json FILE.\n",
                     shown(report.memory_reserve.stated));
  return out;
}

std::string cost_json(const CostReport& report) {
  Json json;
  json["schema"] = "shardcheck.cost/1";
  json["model"] = report.model;
  json["plan"] = report.plan;
  json["dtype"] = report.dtype;
  json["wire"] = report.wire;
  json["batch"] = report.batch;
  json["sequence"] = report.sequence;
  json["fused"] = report.fused;
  json["gpu"] = {{"name", report.gpu.name},
                 {"title", report.gpu.title},
                 {"constants", json_of(report.gpu.constants)}};
  json["links"] = Json::array();
  for (const sim::Link& link : report.links) {
    json["links"].push_back(
        {{"name", link.name}, {"title", link.title}, {"constants", json_of(link.constants)}});
  }
  json["algorithm_constants"] = json_of(report.algorithm_constants);
  json["memory_reserve"] = json_of(report.memory_reserve.stated);
  json["rows"] = Json::array();
  for (const CostRow& row : report.rows) json["rows"].push_back(json_of(row));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shardcheck
