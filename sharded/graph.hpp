// SPDX-License-Identifier: Apache-2.0
// The transformer as a list of named ops, before anything is cut.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/config.hpp"

namespace shardcheck {

/// Numbers that an op needs besides its operands: "eps", "head_dim", "window", "scale", ... by name, so that a
/// user's own op can carry its own.
using Attributes = std::map<std::string, double, std::less<>>;

/// One op. Values are named by tap; a node's first output carries its name.
struct Node {
  std::string op;      // name in the Registry
  std::string module;  // module whose weights it uses, or that owns its output
  std::vector<std::string> inputs, outputs;
  Attributes attributes;
};

/// In execution order. The only source is the value "ids"; the last node's output is the logits.
struct Graph {
  std::vector<Node> nodes;
};

/// Throws InputError for a family without a builder.
Graph build_graph(const Config& config);

}  // namespace shardcheck
