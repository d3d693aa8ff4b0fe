// SPDX-License-Identifier: Apache-2.0
// A shipped model with something changed, compared with the golden of the right one.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/golden.hpp"
#include "model/model.hpp"

namespace shardcheck {

inline const std::filesystem::path kModels = std::filesystem::path(SHARDCHECK_SOURCE_DIR) /
                                             "fixtures/models";

inline std::filesystem::path golden_file(const std::string& name) {
  return kModels / name / "golden.safetensors";
}
inline Model shipped(const std::string& name) { return load_model((kModels / name).string()); }

using Rows = std::vector<std::vector<double>>;

// A model's weights with some tensors changed; with none where `change` is empty.
class ChangedWeights : public WeightSource {
 public:
  using Change = std::function<void(const std::string& tensor, Rows& rows)>;
  ChangedWeights(Model model, Change change)
      : model_(std::move(model)), change_(std::move(change)) {}

  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    const auto [rows, cols] = model_.extents(tensor);
    return cols == 1 ? std::vector{rows} : std::vector{rows, cols};
  }
  DType dtype(std::string_view tensor) const override { return model_.dtype(tensor); }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    if (!change_) return model_.read_rows(tensor, begin, end, out);
    const auto [row_count, cols] = model_.extents(tensor);
    std::vector<double> flat(static_cast<std::size_t>(row_count * cols));
    model_.read_rows(tensor, 0, row_count, std::span<double>(flat));
    Rows rows;
    for (std::int64_t r = 0; r < row_count; ++r) {
      rows.emplace_back(flat.begin() + r * cols, flat.begin() + (r + 1) * cols);
    }
    change_(std::string(tensor), rows);
    auto next = out.begin();
    for (std::int64_t r = begin; r < end; ++r) {
      next = std::copy(rows[static_cast<std::size_t>(r)].begin(),
                       rows[static_cast<std::size_t>(r)].end(), next);
    }
  }
  void read_rows(std::string_view, std::int64_t, std::int64_t, std::span<float>) const override {
    throw std::logic_error("the truth is computed in f64");
  }

 private:
  Model model_;
  Change change_;
};

// The report of a model whose config or weights are changed, against the golden of the right one.
inline GoldenReport with_fault(const std::string& name,
                               const std::function<void(Config&)>& change_config,
                               const ChangedWeights::Change& change_weights) {
  Model right = shipped(name);
  Config config = right.config();
  change_config(config);
  const Model wrong(config, std::make_unique<ChangedWeights>(std::move(right), change_weights));
  return compare_golden(wrong, golden_file(name));
}

inline void keep_config(Config&) {}
inline const ChangedWeights::Change kKeepWeights;

// The first failing row is where the fault is, not only somewhere after it.
inline std::string first_failure(const GoldenReport& report) {
  const auto row = std::find_if(report.rows.begin(), report.rows.end(),
                                [](const GoldenRow& r) { return !r.passed(); });
  return row == report.rows.end() ? "none" : row->phase + "/" + row->tap;
}

}  // namespace shardcheck
