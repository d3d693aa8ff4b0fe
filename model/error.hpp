// SPDX-License-Identifier: Apache-2.0
// The exceptions of shardcheck. A message names the place, the rule, the values and the remedy in one sentence.
#pragma once

#include <stdexcept>
#include <string>

namespace shardcheck {

/// The input (file, option, model, plan) can't be used: exit code 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A plan that is well formed but puts a value where an op may not take it: exit code 1.
class PlacementError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Two operands whose shapes or dtypes don't fit. Without `--force` this is a fault of the program.
class ShapeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A call of a device's library failed, or a kernel did what no kernel may do: exit code 3.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Ranks disagree about a collective, wait for each other, or one of them died.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace shardcheck
