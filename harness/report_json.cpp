// SPDX-License-Identifier: Apache-2.0
#include "harness/report_json.hpp"

#include <cmath>

namespace shardcheck {

using Json = nlohmann::ordered_json;

Json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json mesh_json(const Mesh& mesh) {
  Json sizes = Json::object();
  for (const Mesh::Axis& axis : mesh.axes) sizes[axis.name] = axis.size;
  return sizes;
}

Json findings_json(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& f : findings) {
    list.push_back({{"rule", f.rule},
                    {"op", f.op},
                    {"tap", f.tap},
                    {"axis", f.axis},
                    {"met", f.met},
                    {"required", f.required},
                    {"fix", f.fix},
                    {"sentence", f.sentence}});
  }
  return list;
}

Json first_failure_json(const FirstFailure& first) {
  Json json;
  json["gate"] = name(first.gate);
  json["tap"] = first.tap;
  json["phase"] = name(first.phase);
  json["step"] = first.step;
  if (first.all_ranks) {
    json["ranks"] = "all";
  } else {
    json["ranks"] = first.ranks;
  }
  const bool element = first.row >= 0;
  json["index"] = element ? Json{first.row, first.feature} : Json(nullptr);
  json["local_index"] = element ? Json{first.local_row, first.local_feature} : Json(nullptr);
  json["got"] = element ? json_number(first.got) : Json(nullptr);
  json["expected"] = element ? json_number(first.expected) : Json(nullptr);
  json["cause_name"] = first.cause_name.empty() ? Json(nullptr) : Json(first.cause_name);
  json["cause"] = first.cause.empty() ? Json(nullptr) : Json(first.cause);
  json["residual"] = nullptr;
  if (first.residual) {
    const Residual& r = *first.residual;
    json["residual"] = {{"A", json_number(r.a)},
                        {"B", json_number(r.b)},
                        {"C", json_number(r.c)},
                        {"limits", {{"A", r.limits.a}, {"B", r.limits.b}, {"C", r.limits.c}}}};
  }
  json["also"] = first.also;
  json["propagated"] = nullptr;
  if (first.propagated) {
    const Propagated& p = *first.propagated;
    json["propagated"] = {{"tap", p.tap},     {"phase", name(p.phase)},
                          {"step", p.step},   {"ranks", p.ranks},
                          {"error", json_number(p.error)}, {"limit", json_number(p.limit)}};
  }
  return json;
}

}  // namespace shardcheck
