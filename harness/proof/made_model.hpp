// SPDX-License-Identifier: Apache-2.0
// Models that have no checkpoint: a config, and weights that are made up.
#pragma once

#include <cstdint>

#include "model/model.hpp"

namespace shardcheck {

/// Normals as in --random, or small integers.
enum class MadeWeights { normal, small_integers };

/// -3 to 3 without 0, of 64 random bits.
constexpr int small_integer(std::uint64_t bits) {
  const int value = static_cast<int>(bits % 6) - 3;
  return value < 0 ? value : value + 1;
}

/// A model of this config whose weights are made, with the checkpoint dtypes of `like` (groups of quantised weights),
/// which must outlive it.
Model made_model(const Model& like, const Config& config, MadeWeights values);

}  // namespace shardcheck
