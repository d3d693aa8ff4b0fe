// SPDX-License-Identifier: Apache-2.0
#include "model/model.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "model/error.hpp"
#include "model/host_tensor.hpp"
#include "model/sources.hpp"

namespace shardcheck {
namespace {

/// Whether any value is NaN or infinite: on the bits, so that the loop is a vector loop.
bool any_not_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  std::uint32_t found = 0;
  for (const float x : values)
    found |= (std::bit_cast<std::uint32_t>(x) & kExponent) == kExponent ? 1u : 0u;
  return found != 0;
}

bool any_not_finite(std::span<const double> values) {
  constexpr std::uint64_t kExponent = 0x7ff0000000000000ULL;
  std::uint64_t found = 0;
  for (const double x : values)
    found |= (std::bit_cast<std::uint64_t>(x) & kExponent) == kExponent ? 1u : 0u;
  return found != 0;
}

std::vector<std::int64_t> canonical_shape(const Module& module, bool is_bias) {
  if (is_bias || module.kind == ModuleKind::norm) return {module.out};
  return {module.out, module.in};
}

void check_tensor(const Config& config, const WeightSource& source, const Module& module, bool is_bias) {
  const std::string name = is_bias ? module.bias() : module.weight();
  const std::vector<std::int64_t> needed = canonical_shape(module, is_bias);
  const auto found = source.shape(name);
  if (!found) {
    throw InputError(fmt::format(
        "{}: the weights have no tensor \"{}\", which the config asks for in shape {}; use the "
        "config that belongs to these weights",
        config.name, name, to_string(needed)));
  }
  if (*found != needed) {
    throw InputError(fmt::format(
        "{}: the tensor \"{}\" has shape {}, the config asks for {}{}; use the config that belongs "
        "to these weights",
        config.name, name, to_string(*found), to_string(needed),
        module.stored_transposed && !is_bias ? " (as [out, in]; stored transposed)" : ""));
  }
}

}  // namespace

void check_row_range(std::string_view tensor, std::int64_t begin, std::int64_t end,
                     std::int64_t rows, std::int64_t cols, std::size_t out_elements) {
  if (begin < 0 || begin > end || end > rows ||
      out_elements != static_cast<std::size_t>((end - begin) * cols)) {
    throw std::logic_error(
        fmt::format("{}: rows [{}, {}) of a [{}, {}] tensor read into {} elements", tensor, begin,
                    end, rows, cols, out_elements));
  }
}

Model::Model(Config config, std::unique_ptr<const WeightSource> source)
    : config_(std::move(config)), modules_(shardcheck::modules(config_)), source_(std::move(source)) {
  for (std::size_t i = 0; i < modules_.size(); ++i) index_[modules_[i].path] = i;
  if (source_ == nullptr) return;
  for (const Module& module : modules_) {
    if (!module.tied_to) check_tensor(config_, *source_, module, false);
    if (module.has_bias) check_tensor(config_, *source_, module, true);
  }
}

const Module& Model::module(std::string_view path) const {
  const auto it = index_.find(strip_prefix(path));
  if (it != index_.end()) return modules_[it->second];
  std::vector<std::string> paths;
  for (const Module& module : modules_) paths.push_back(module.path);
  throw InputError(fmt::format("{} has no module \"{}\"; the nearest is \"{}\"", config_.name, path,
                               nearest_name(strip_prefix(path), paths)));
}

Model::Tensor Model::find(std::string_view tensor) const {
  const std::size_t dot = tensor.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? "" : tensor.substr(dot + 1);
  if (last != "weight" && last != "bias") {
    throw InputError(fmt::format("\"{}\" names no tensor; it must end in .weight or .bias", tensor));
  }
  const Module& owner = module(tensor.substr(0, dot));
  if (last == "bias" && !owner.has_bias)
    throw InputError(fmt::format("{} has no bias \"{}\"", config_.name, tensor));
  return {&owner, last == "bias"};
}

Model::Extents Model::extents(std::string_view tensor) const {
  const Tensor found = find(tensor);
  return {found.module->out, found.is_bias ? 1 : found.module->in};
}

std::string Model::storage_name(std::string_view tensor) const {
  const Tensor found = find(tensor);
  if (found.is_bias) return found.module->bias();
  return found.module->tied_to ? *found.module->tied_to + ".weight" : found.module->weight();
}

DType Model::dtype(std::string_view tensor) const {
  const std::string stored = storage_name(tensor);
  return source_ == nullptr ? config_.checkpoint_dtype : source_->dtype(stored);
}

template <typename T>
void Model::read_checked(std::string_view tensor, std::int64_t begin, std::int64_t end,
                         std::span<T> out) const {
  if (source_ == nullptr)
    throw std::logic_error("weights of a model of shapes alone were asked for");
  const std::string stored = storage_name(tensor);
  source_->read_rows(stored, begin, end, out);
  if (!any_not_finite(std::span<const T>(out))) return;
  const std::int64_t cols = extents(tensor).cols;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::isfinite(out[i])) continue;
    const auto flat = static_cast<std::int64_t>(i);
    const std::int64_t row = begin + flat / cols;
    const std::string place = cols == 1 ? fmt::format("[{}]", row)
                                        : fmt::format("[{}, {}]", row, flat % cols);
    throw InputError(fmt::format(
        "{}: the tensor \"{}\" holds {} at {}; weights must be finite, fetch or write them again",
        config_.name, stored, out[i], place));
  }
}

void Model::read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                      std::span<double> out) const {
  read_checked(tensor, begin, end, out);
}

void Model::read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                      std::span<float> out) const {
  read_checked(tensor, begin, end, out);
}

}  // namespace shardcheck
