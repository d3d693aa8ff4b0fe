// SPDX-License-Identifier: Apache-2.0
#include "sharded/mesh.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardcheck {

int Mesh::ranks() const {
  int product = 1;
  for (const Axis& axis : axes) product *= axis.size;
  return product;
}

int Mesh::axis_index(std::string_view name) const {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::vector<int> Mesh::coordinates(int rank) const {
  std::vector<int> result(axes.size());
  for (std::size_t i = axes.size(); i-- > 0;) {
    result[i] = rank % axes[i].size;
    rank /= axes[i].size;
  }
  return result;
}

int Mesh::rank_at(const std::vector<int>& coordinates) const {
  int rank = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) rank = rank * axes[i].size + coordinates[i];
  return rank;
}

std::vector<int> Mesh::group(int rank, const std::vector<int>& axes_of_group) const {
  std::vector<int> members{rank};
  for (const int axis : axes_of_group) {
    std::vector<int> wider;
    for (const int member : members) {
      std::vector<int> at = coordinates(member);
      for (int i = 0; i < axes[static_cast<std::size_t>(axis)].size; ++i) {
        at[static_cast<std::size_t>(axis)] = i;
        wider.push_back(rank_at(at));
      }
    }
    members = std::move(wider);
  }
  return members;
}

int Mesh::group_size(const std::vector<int>& axes_of_group) const {
  int product = 1;
  for (const int axis : axes_of_group) product *= axes[static_cast<std::size_t>(axis)].size;
  return product;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (const Mesh::Axis& axis : mesh.axes) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  }
  return text;
}

}  // namespace shardcheck
