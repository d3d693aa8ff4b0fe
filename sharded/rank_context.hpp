// SPDX-License-Identifier: Apache-2.0
// What one rank holds while it runs a program: device, stream, its weight shards, its KV cache, its communicators.
// Ops see the world through this and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.hpp"
#include "sharded/comm/communicator.hpp"
#include "sharded/op.hpp"
#include "sharded/program.hpp"
#include "sharded/weights.hpp"

namespace shardcheck {

/// The precisions and the reduction of a run; storage, wire and accumulate dtype are three different things.
struct RunSettings {
  DType storage = DType::f32;
  DType wire = DType::f32;  // of reductions; gathers move the storage dtype
  ReduceSpec reduction;
};

/// Keys and values that attention has seen, per sequence: each in the row of its position. Rows of positions that the
/// rank doesn't keep (other ranks' tokens) stay poisoned.                                     k, v [capacity, kv_r * d]
struct SequenceCache {
  Tensor k, v;
};

class RankContext {
 public:
  RankContext(const Program& program, int rank, Device& device, World& world, WeightStore& weights,
              const RunSettings& settings, std::vector<std::int64_t> sequence_capacity);

  const Program& program() const { return program_; }
  int rank() const { return rank_; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  const RunSettings& settings() const { return settings_; }
  Ledger& ledger() { return ledger_; }

  /// This rank's shard of "X.weight" ([rows, cols]) or "X.bias" ([1, rows]); made once, in the storage dtype.
  const Tensor& weight(const std::string& tensor);
  /// Replaces a shard: a planted fault copies and changes it.
  void set_weight(const std::string& tensor, Tensor shard) { weights_[tensor] = std::move(shard); }
  /// Where shards come from: a planted fault takes other ranges of it.
  WeightStore& store() { return store_; }
  /// The group over these mesh axes.
  Communicator& communicator(const std::vector<int>& axes);
  /// Cache of one attention block for one sequence; made on first use with room for the whole run.
  SequenceCache& cache(const std::string& attention, std::int64_t sequence, std::int64_t kv_features);

  /// Sets the step that the next instructions belong to and uploads its ids and positions. Steps are kept by address:
  /// what a rank has in its cache follows from all of them.
  void begin_step(const Step& step);
  /// A step that ran before, elsewhere.
  void remember(const Step& step) { steps_.push_back(&step); }
  const Step& step() const { return *steps_.back(); }
  std::span<const Step* const> steps() const { return steps_; }  // so far, with this one
  const Tensor& ids() const { return ids_; }                 // [1, M] i64
  const Tensor& position_ids() const { return positions_; }  // [1, M] i64
  const std::vector<std::int64_t>& positions() const { return position_values_; }
  /// cos and sin of the angles of these rows of the step, in the accumulate dtype; made once per step.
  ///                                                                                       [rows, head_dim / 2] each
  std::pair<Tensor, Tensor> rope_table(const Ranges& rows);

  /// Rows that this rank holds of a value in this step, its local extents, and a fresh buffer of them.
  Ranges rows_of(int value) const;
  Extent extent(int value) const;
  Tensor allocate(int value);
  DType dtype(const Value& value) const {
    return dtype_of(value.dtype, settings_.storage, settings_.wire);
  }

 private:
  const Program& program_;
  int rank_;
  Device& device_;
  World& world_;
  WeightStore& store_;
  RunSettings settings_;
  std::vector<std::int64_t> capacity_;
  std::unique_ptr<Stream> stream_;
  Ledger ledger_;
  std::map<std::string, Tensor, std::less<>> weights_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> communicators_;
  std::map<std::pair<std::string, std::int64_t>, SequenceCache> caches_;
  std::vector<const Step*> steps_;
  Tensor ids_, positions_;
  std::vector<std::pair<Ranges, std::pair<Tensor, Tensor>>> rope_tables_;  // of this step, by rows
  std::vector<std::int64_t> position_values_;
};

}  // namespace shardcheck
