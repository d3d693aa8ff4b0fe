// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/counterparts.hpp"

#include <set>

#include "kernels/field/sites.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

/// "X.in" and "X.in.2" are "X"; else empty.
std::string_view module_of_input(std::string_view name) {
  const std::size_t digits = name.find_last_not_of("0123456789");
  if (digits != std::string_view::npos && digits + 1 < name.size() && name[digits] == '.')
    name = name.substr(0, digits);
  return name.ends_with(".in") ? name.substr(0, name.size() - 3) : std::string_view();
}

}  // namespace

Counterparts::Counterparts(const Program& sharded, const Program& whole, Phase phase)
    : whole_program_(whole) {
  for (const Instruction& instruction : whole.instructions.at(phase)) {
    for (const int output : instruction.outputs) whole_[whole.value(output).name] = &instruction;
  }
  std::set<int> before_bias;
  for (const Instruction& instruction : sharded.instructions.at(phase)) {
    const Module* module = sharded.find_module(instruction.module);
    const bool linear = instruction.op != nullptr && instruction.op->name() == "linear";
    const bool stage = linear ? module != nullptr && module->has_bias && !instruction.adds_bias
                              : instruction.op == nullptr &&
                                    before_bias.count(instruction.inputs[0]) != 0;
    for (const int output : instruction.outputs) {
      producers_[output] = &instruction;
      Counterpart counterpart = find(sharded.value(output));
      // A value with the module's own name has its bias, whoever should have added it.
      if (stage && counterpart.tap != sharded.value(output).name) {
        before_bias.insert(output);
        counterpart.without = module->bias();
      }
      counterparts_[output] = std::move(counterpart);
    }
  }
}

const Instruction* Counterparts::producer(int value) const {
  const auto found = producers_.find(value);
  return found == producers_.end() ? nullptr : found->second;
}

Counterpart Counterparts::find(const Value& value) const {
  if (whole_.count(value.name) != 0) return {value.name, "", false};
  const std::string_view site = field::logical_site(value.name);
  if (whole_.count(site) != 0) return {std::string(site), "", false};
  if (const std::string_view module = module_of_input(site); !module.empty())
    return {input_of(module), "", false};
  if (site.ends_with(".stat")) return {input_of(site.substr(0, site.size() - 5)), "", true};
  return {};
}

std::string Counterparts::input_of(std::string_view module) const {
  const auto found = whole_.find(module);
  if (found == whole_.end() || found->second->inputs.empty()) return {};
  const std::string& name = whole_program_.value(found->second->inputs[0]).name;
  return whole_.count(name) != 0 ? name : std::string();
}

}  // namespace shardcheck
