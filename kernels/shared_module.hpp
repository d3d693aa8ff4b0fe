// SPDX-License-Identifier: Apache-2.0
// Parts of the program that are opened on request: libshardcheck_<name>.so.
#pragma once

#include <string>

namespace shardcheck {

/// "libshardcheck_cuda.so".
std::string module_file(const std::string& name);

/// Address of a symbol in a module; null and the reason in `why` if there is no module or it can't be opened (a library
/// that it needs is missing, say). Looks into the folders of SHARDCHECK_MODULES (separated by ':'), then beside the
/// program, in modules/ beside it, and in ../lib/shardcheck. A module stays open until the process ends.
void* module_symbol(const std::string& name, const std::string& symbol, std::string& why);

/// "libshardcheck_cuda.so belongs to another build of shardcheck (version 1, not 2)".
std::string other_build(const std::string& name, int version, int wanted);

/// The table that a module exports as `symbol`: a struct whose `version` must be `wanted`. Null and the reason in `why`
/// if it can't be had.
template <typename Module>
const Module* open_module(const std::string& name, const std::string& symbol, int wanted, std::string& why) {
  const auto* module = static_cast<const Module*>(module_symbol(name, symbol, why));
  if (module == nullptr || module->version == wanted) return module;
  why = other_build(name, module->version, wanted);
  return nullptr;
}

}  // namespace shardcheck
