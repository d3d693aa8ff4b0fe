// SPDX-License-Identifier: Apache-2.0
// Whole weights in the storage dtype, held once; ranks get views of them (cpu) or copies (other devices).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/device.hpp"
#include "model/model.hpp"
#include "sharded/partition.hpp"

namespace shardcheck {

class WeightStore {
 public:
  /// Weights are read on first use and rounded once (RNE) from the checkpoint's values. Thread safe.
  WeightStore(const Model& model, DType storage);
  /// Fills `whole`, zeros of a weight's shape, with the values of the tensor of this storage name.
  using Values = std::function<void(const std::string& tensor, HostTensor& whole)>;
  /// Weights whose values don't come from the checkpoint.
  WeightStore(const Model& model, DType storage, Values values);
  /// Shapes alone (meta): whole() must not be called.
  const Model& model() const { return model_; }
  DType storage() const { return storage_; }

  /// "X.weight" as [rows, cols], "X.bias" or a norm's weight as [1, n].
  HostTensor whole(const std::string& tensor);
  /// Reads every weight now, with this many threads. `progress` gets the fraction done.
  void load_all(int threads, const std::function<void(double)>& progress = {});

  /// The given rows and columns of a weight on a device, in the order of the ranges. One range each: a view where the
  /// device can read host memory; else a copy of that part alone. On a device without values: shapes alone.
  Tensor shard(const std::string& tensor, const Ranges& rows, const Ranges& cols, Device& device,
               Stream& stream);

 private:
  struct Slot {
    std::once_flag once;
    HostTensor tensor;
  };
  const Model& model_;
  DType storage_;
  Values values_;  // null: the checkpoint's
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Slot>> slots_;
};

}  // namespace shardcheck
