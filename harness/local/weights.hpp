// SPDX-License-Identifier: Apache-2.0
// The whole weights as a run stores them: read in f64 and rounded once to the storage dtype, by the judge itself.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/model.hpp"

namespace shardcheck {

/// values[i] = the nearest number of `dtype`, ties to even, one rounding. Beyond the largest it is infinite.
void round_in_place(std::span<double> values, DType dtype);

class RoundedWeights {
 public:
  RoundedWeights(const Model& model, DType storage) : model_(model), storage_(storage) {}

  /// Rows [begin, end) of "X.weight" or "X.bias", row-major.
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const;
  /// A vector, whole: a bias or a norm's weight.
  std::vector<double> vector(std::string_view tensor) const;
  const Model& model() const { return model_; }
  DType storage() const { return storage_; }

 private:
  const Model& model_;
  DType storage_;
};

}  // namespace shardcheck
