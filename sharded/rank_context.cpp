// SPDX-License-Identifier: Apache-2.0
#include "sharded/rank_context.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shardcheck {
namespace {

/// Radians per position of every pair: 1 / pow(theta, 2i / d), f64, then scaled by type.
/// llama3 (Llama 3.1): wavelengths beyond original / low_freq are slowed by `factor`, those below original / high_freq
/// are kept, and between the two the frequency is interpolated. Source: transformers modeling_rope_utils.py.
std::vector<double> rope_angles_per_position(const Config& config) {
  const RopeConfig& rope = config.rope;
  std::vector<double> frequency(static_cast<std::size_t>(config.head_dim / 2));
  for (std::size_t i = 0; i < frequency.size(); ++i) {
    double f = 1.0 / std::pow(rope.theta,
                              2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (rope.type == RopeConfig::Type::linear) f /= rope.factor;
    if (rope.type == RopeConfig::Type::llama3) {
      const double wavelength = 2.0 * std::numbers::pi / f;
      const double slow = rope.original_max_positions / rope.low_freq_factor;
      const double fast = rope.original_max_positions / rope.high_freq_factor;
      if (wavelength > slow) {
        f /= rope.factor;
      } else if (wavelength >= fast) {
        const double blend = (rope.original_max_positions / wavelength - rope.low_freq_factor) /
                             (rope.high_freq_factor - rope.low_freq_factor);
        f = (1.0 - blend) * f / rope.factor + blend * f;
      }
    }
    frequency[i] = f;
  }
  return frequency;
}

HostTensor row_of_ids(const std::vector<std::int64_t>& ids) {
  HostTensor tensor(DType::i64, {1, static_cast<std::int64_t>(ids.size())});
  std::copy(ids.begin(), ids.end(), tensor.as_mutable<std::int64_t>().begin());
  return tensor;
}

}  // namespace

RankContext::RankContext(const Program& program, int rank, Device& device, World& world,
                         WeightStore& weights, const RunSettings& settings,
                         std::vector<std::int64_t> sequence_capacity)
    : program_(program),
      rank_(rank),
      device_(device),
      world_(world),
      store_(weights),
      settings_(settings),
      capacity_(std::move(sequence_capacity)),
      stream_(device.make_stream()) {}

const Tensor& RankContext::weight(const std::string& tensor) {
  const auto found = weights_.find(tensor);
  if (found != weights_.end()) return found->second;
  const std::string path = tensor.substr(0, tensor.rfind('.'));
  const Module& module = store_.model().module(path);
  const Ranges rows = program_.plan.rows_of(module, rank_);
  const bool matrix = module.kind != ModuleKind::norm && tensor == module.weight();
  // A vector is one row on the device: its elements are columns.
  Tensor shard = matrix ? store_.shard(tensor, rows, program_.plan.cols_of(module, rank_), device_,
                                       *stream_)
                        : store_.shard(tensor, {{0, 1}}, rows, device_, *stream_);
  return weights_.emplace(tensor, std::move(shard)).first->second;
}

Communicator& RankContext::communicator(const std::vector<int>& axes) {
  std::unique_ptr<Communicator>& slot = communicators_[axes];
  if (!slot) slot = world_.group(rank_, axes, device_, ledger_);
  return *slot;
}

SequenceCache& RankContext::cache(const std::string& attention, std::int64_t sequence,
                                  std::int64_t kv_features) {
  SequenceCache& slot = caches_[{attention, sequence}];
  if (!slot.k) {
    const std::int64_t capacity = capacity_.at(static_cast<std::size_t>(sequence));
    slot.k = device_.allocate(*stream_, settings_.storage, capacity, kv_features);
    slot.v = device_.allocate(*stream_, settings_.storage, capacity, kv_features);
    device_.poison(*stream_, slot.k);
    device_.poison(*stream_, slot.v);
  }
  return slot;
}

void RankContext::begin_step(const Step& step) {
  steps_.push_back(&step);
  position_values_ = step.positions();
  ids_ = device_.allocate(*stream_, DType::i64, 1, step.tokens());
  positions_ = device_.allocate(*stream_, DType::i64, 1, step.tokens());
  if (device_.has_values()) {
    device_.upload(*stream_, row_of_ids(step.ids), ids_);
    device_.upload(*stream_, row_of_ids(position_values_), positions_);
  }
  rope_tables_.clear();
}

std::pair<Tensor, Tensor> RankContext::rope_table(const Ranges& rows) {
  for (const auto& [known, table] : rope_tables_) {
    if (known == rows) return table;
  }
  const Config& config = program_.config;
  const DType dtype = accumulate_dtype(settings_.storage);
  const std::int64_t count = total(rows), cols = config.head_dim / 2;
  const Tensor cos_table = device_.allocate(*stream_, dtype, count, cols);
  const Tensor sin_table = device_.allocate(*stream_, dtype, count, cols);
  if (device_.has_values()) {
    const std::vector<double> frequency = rope_angles_per_position(config);
    std::vector<double> angles;
    for (const Range& range : rows) {
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const auto position = static_cast<double>(position_values_[static_cast<std::size_t>(row)]);
        for (const double f : frequency) angles.push_back(position * f);
      }
    }
    device_.upload(*stream_, device_.cosines(dtype, {count, cols}, angles), cos_table);
    device_.upload(*stream_, device_.sines(dtype, {count, cols}, angles), sin_table);
  }
  return rope_tables_.emplace_back(rows, std::pair{cos_table, sin_table}).second;
}

Ranges RankContext::rows_of(int value) const {
  return held_rows(program_.value(value), program_.mesh, rank_, steps_);
}

Extent RankContext::extent(int value) const {
  const Value& v = program_.value(value);
  return {total(rows_of(value)), v.layout.local_features(rank_), dtype(v)};
}

Tensor RankContext::allocate(int value) {
  const Extent local = extent(value);
  Tensor fresh = device_.allocate(*stream_, local.dtype, local.rows, local.cols);
  // Where shapes may not fit, an op may fill only a part of its output.
  if (program_.forced_shapes) device_.poison(*stream_, fresh);
  return fresh;
}

}  // namespace shardcheck
