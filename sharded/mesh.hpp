// SPDX-License-Identifier: Apache-2.0
// The ranks as a grid with named axes, and the groups along them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardcheck {

/// Row-major in the order of the axes: the last axis varies fastest.
struct Mesh {
  struct Axis {
    std::string name;
    int size = 1;
    bool operator==(const Axis&) const = default;
  };
  std::vector<Axis> axes;

  int ranks() const;
  int axis_index(std::string_view name) const;  // -1 if there is none
  /// Coordinate of a rank on each axis, and back.
  std::vector<int> coordinates(int rank) const;
  int rank_at(const std::vector<int>& coordinates) const;
  /// Ranks of the group of `rank` over the given axes (one group over all of them), first axis outermost.
  std::vector<int> group(int rank, const std::vector<int>& axes_of_group) const;
  int group_size(const std::vector<int>& axes_of_group) const;
  bool operator==(const Mesh&) const = default;
};

std::string to_string(const Mesh& mesh);  // "tp=4", "dp=2,tp=4"

}  // namespace shardcheck
