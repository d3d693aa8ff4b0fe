// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "model/philox.hpp"
#include "model/sources.hpp"

namespace shardcheck {
namespace {

constexpr float kOutlierGain = 8.0f;
constexpr std::int64_t kChannelsPerOutlier = 256;
constexpr float kBiasScale = 0.1f;
constexpr float kNormSpread = 0.2f;

enum class OutlierAxis { none, rows, cols };

/// value = gain(channel) x (offset + scale x normal)
struct Recipe {
  StoredTensor stored;
  float offset = 0.0f;
  float scale = 1.0f;
  OutlierAxis outlier_axis = OutlierAxis::none;
};

OutlierAxis outlier_axis_of(const Module& module) {
  switch (module.role) {
    case ModuleRole::o:
    case ModuleRole::down:
      return OutlierAxis::rows;
    case ModuleRole::token_embedding:
    case ModuleRole::position_embedding:
      return OutlierAxis::cols;
    default:
      return module.kind == ModuleKind::norm ? OutlierAxis::rows : OutlierAxis::none;
  }
}

Recipe weight_recipe(const Module& module) {
  Recipe recipe;
  recipe.stored = {module.out, module.in, module.kind == ModuleKind::norm};
  recipe.outlier_axis = outlier_axis_of(module);
  if (module.kind == ModuleKind::norm) {
    recipe.offset = 1.0f;
    recipe.scale = kNormSpread * kNormalUnit;
  } else {
    recipe.scale = static_cast<float>(double{kNormalUnit} / std::sqrt(static_cast<double>(module.in)));
  }
  return recipe;
}

class SyntheticSource final : public WeightSource {
 public:
  SyntheticSource(std::uint64_t seed, const std::vector<Module>& modules) : seed_(seed) {
    for (const Module& module : modules) {
      if (!module.tied_to) recipes_[module.weight()] = weight_recipe(module);
      if (module.has_bias) {
        Recipe recipe;
        recipe.stored = {module.out, 1, true};
        recipe.scale = kBiasScale * kNormalUnit;
        recipes_[module.bias()] = recipe;
      }
    }
  }

  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    const auto it = recipes_.find(tensor);
    if (it == recipes_.end()) return std::nullopt;
    return it->second.stored.shape();
  }

  DType dtype(std::string_view) const override { return DType::f32; }

  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    read(tensor, begin, end, out);
  }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const override {
    read(tensor, begin, end, out);
  }

 private:
  template <typename T>
  void read(std::string_view tensor, std::int64_t begin, std::int64_t end, std::span<T> out) const {
    const Recipe& recipe = recipes_.find(tensor)->second;
    const std::int64_t cols = recipe.stored.cols;
    check_row_range(tensor, begin, end, recipe.stored.rows, cols, out.size());
    fill(RandomStream(seed_, tensor), recipe, static_cast<std::uint64_t>(begin * cols), out);

    const auto is_outlier = outliers(tensor, recipe);
    for (const std::int64_t channel : is_outlier) {
      if (recipe.outlier_axis == OutlierAxis::rows && channel >= begin && channel < end) {
        for (T& x : out.subspan(static_cast<std::size_t>((channel - begin) * cols),
                                static_cast<std::size_t>(cols))) {
          x *= T{kOutlierGain};
        }
      }
      if (recipe.outlier_axis == OutlierAxis::cols) {
        for (std::int64_t row = 0; row < end - begin; ++row) {
          out[static_cast<std::size_t>(row * cols + channel)] *= T{kOutlierGain};
        }
      }
    }
  }

  /// In f32 for both widths of T: the "checkpoint" is f32, and a power of two as gain keeps that exact.
  template <typename T>
  static void fill(const RandomStream& stream, const Recipe& recipe, std::uint64_t first,
                   std::span<T> out) {
    constexpr std::size_t kChunk = 2048;
    std::array<std::int32_t, kChunk> sums;
    for (std::size_t done = 0; done < out.size(); done += kChunk) {
      const std::size_t count = std::min(kChunk, out.size() - done);
      stream.fill_sums(first + done, std::span(sums).first(count));
      for (std::size_t i = 0; i < count; ++i) {
        out[done + i] = T{recipe.offset + recipe.scale * static_cast<float>(sums[i])};
      }
    }
  }

  std::set<std::int64_t> outliers(std::string_view tensor, const Recipe& recipe) const {
    std::set<std::int64_t> channels;
    if (recipe.outlier_axis == OutlierAxis::none) return channels;
    const std::int64_t n = recipe.outlier_axis == OutlierAxis::rows ? recipe.stored.rows
                                                                    : recipe.stored.cols;
    const RandomStream stream(seed_, std::string(tensor) + "#outliers");
    const std::int64_t draws = std::max<std::int64_t>(1, n / kChannelsPerOutlier);
    for (std::int64_t draw = 0; draw < draws; ++draw) {
      channels.insert(static_cast<std::int64_t>(
          stream.below(static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(draw))));
    }
    return channels;
  }

  std::uint64_t seed_;
  std::map<std::string, Recipe, std::less<>> recipes_;
};

}  // namespace

std::unique_ptr<const WeightSource> synthetic_source(std::uint64_t seed,
                                                     const std::vector<Module>& modules) {
  return std::make_unique<SyntheticSource>(seed, modules);
}

}  // namespace shardcheck
