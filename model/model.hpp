// SPDX-License-Identifier: Apache-2.0
// A model: its config and its weights by canonical name, wherever they come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.hpp"
#include "model/modules.hpp"

namespace shardcheck {

/// Where weights come from: safetensors, GGUF, or synthetic. Names and shapes are canonical (model/modules.hpp).
/// Thread safe: every member may be called from several threads at once.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Canonical shape, [rows, cols] or [n]; nothing if the source doesn't have this tensor.
  virtual std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const = 0;
  /// The dtype in the checkpoint (q4_1, bf16, ...).
  virtual DType dtype(std::string_view tensor) const = 0;
  /// Rows [begin, end) of the canonical matrix, row-major, widened exactly. A vector counts as n rows of one.
  virtual void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                         std::span<double> out) const = 0;
  virtual void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                         std::span<float> out) const = 0;
};

class Model {
 public:
  /// Checks that `source` has every tensor of modules(config), in its shape. Null: a model of shapes alone.
  Model(Config config, std::unique_ptr<const WeightSource> source);

  const Config& config() const { return config_; }
  const std::vector<Module>& modules() const { return modules_; }
  const Module& module(std::string_view path) const;  // throws InputError naming the nearest path
  bool has_weights() const { return source_ != nullptr; }

  /// Canonical shape of "X.weight" or "X.bias": {rows, cols}, cols = 1 for vectors.
  struct Extents {
    std::int64_t rows, cols;
  };
  Extents extents(std::string_view tensor) const;
  DType dtype(std::string_view tensor) const;

  /// Rows [begin, end), row-major, (end - begin) x cols. A tied weight is read from the module it is tied to.
  /// Throws InputError if a value is NaN or infinite, naming the tensor and the index.
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const;
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const;

  /// "layers.3.mlp.down_proj.weight" of a tied module becomes the tensor that holds the numbers.
  std::string storage_name(std::string_view tensor) const;

 private:
  Config config_;
  std::vector<Module> modules_;
  std::map<std::string, std::size_t, std::less<>> index_;  // path -> position in modules_
  std::unique_ptr<const WeightSource> source_;

  struct Tensor {
    const Module* module;
    bool is_bias;
  };
  Tensor find(std::string_view tensor) const;
  template <typename T>
  void read_checked(std::string_view tensor, std::int64_t begin, std::int64_t end,
                    std::span<T> out) const;
};

struct ModelOptions {
  std::optional<std::uint64_t> random_seed;  // --random SEED: synthetic weights
  bool shapes_only = false;                  // cost, lint: weights are never read
  ConfigOptions config;
  bool tensor_types = false;  // with shapes_only: Model::dtype says all the same how a GGUF file stores each tensor
};

/// MODEL as typed by the user: a directory (config.json + safetensors, or one .gguf), a .gguf, a config.json,
/// a shipped model's or config's name, or "smollm2" (fetched by fixtures/fetch into the cache).
/// Throws InputError; a directory or config without weights says to use --random.
Model load_model(const std::string& model, const ModelOptions& options = {});

}  // namespace shardcheck
