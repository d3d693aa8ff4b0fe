// SPDX-License-Identifier: Apache-2.0
#include "harness/import/module_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sharded/plan.hpp"

namespace shardcheck {
namespace {

/// "layers.*.mlp.up_proj" for "layers.3.mlp.up_proj" and for "layers.{0,1}.mlp.up_proj"; `layer` is what it replaced.
std::string any_layer(std::string_view path, std::string* layer = nullptr) {
  const std::string text(strip_prefix(path));
  for (const std::string_view container : {"layers.", "h."}) {
    if (text.rfind(container, 0) != 0) continue;
    const std::size_t end = text.find('.', container.size());
    if (layer != nullptr) *layer = text.substr(container.size(), end - container.size());
    return std::string(container) + "*" + (end == std::string::npos ? "" : text.substr(end));
  }
  return text;
}

/// The pattern of all layers, narrowed to those that are meant.
std::string with_layers(const std::string& pattern, const std::string& layers) {
  const std::size_t star = pattern.find('*');
  return star == std::string::npos ? pattern
                                   : pattern.substr(0, star) + layers + pattern.substr(star + 1);
}

std::string parent(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? "" : path.substr(0, dot));
}

Config smallest(Family family, std::string model_type) {
  Config config;
  config.model_type = std::move(model_type);
  config.family = family;
  config.hidden_size = config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.head_dim = config.intermediate_size = config.vocab_size = config.max_positions = 1;
  config.windows.resize(1);
  return config;
}

bool is_one_of(ModuleRole role, std::initializer_list<ModuleRole> roles) {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

}  // namespace

ModuleTable ModuleTable::of(const Model& model) {
  ModuleTable table;
  table.of_one_model_ = true;
  table.add(model.modules());
  table.add_blocks();
  return table;
}

ModuleTable ModuleTable::of_all_families() {
  ModuleTable table;
  const std::pair<Family, const char*> families[] = {{Family::llama, "llama"},
                                                     {Family::qwen3, "qwen3"},
                                                     {Family::olmo2, "olmo2"},
                                                     {Family::phi3, "phi3"},
                                                     {Family::gpt2, "gpt2"}};
  for (const auto& [family, name] : families) {
    table.add(shardcheck::modules(smallest(family, name)));
  }
  for (KnownModule& module : table.modules_) module.layers.clear();
  table.add_blocks();
  return table;
}

void ModuleTable::add(const std::vector<Module>& modules) {
  for (const Module& module : modules) {
    const std::string pattern = any_layer(module.path);
    auto known = std::find_if(modules_.begin(), modules_.end(),
                              [&](const KnownModule& other) { return other.pattern == pattern; });
    if (known == modules_.end()) known = modules_.insert(known, {pattern, module, {}});
    if (module.layer >= 0) known->layers.push_back(module.layer);
  }
}

void ModuleTable::add_blocks() {
  for (const KnownModule& module : modules_) {
    if (module.sample.layer < 0 || module.sample.kind != ModuleKind::linear) continue;
    const std::string pattern = parent(module.pattern);
    const auto known = std::find_if(blocks_.begin(), blocks_.end(),
                                    [&](const KnownBlock& b) { return b.pattern == pattern; });
    if (known == blocks_.end()) {
      blocks_.push_back({pattern, &module, &module});
    } else if (is_one_of(module.sample.role, {ModuleRole::o, ModuleRole::down})) {
      known->last = &module;
    }
  }
}

std::vector<SelectedModule> ModuleTable::select(const ImportedRule& rule) const {
  std::vector<SelectedModule> selected;
  std::string layer = "*";
  const std::string general = any_layer(rule.pattern, &layer);
  for (const KnownModule& known : modules_) {
    if (!of_one_model_) {
      if (matches(general, known.sample.path))
        selected.push_back({&known, with_layers(known.pattern, layer), {}});
      continue;
    }
    std::vector<std::int64_t> layers;
    bool any = false;
    const auto ask = [&](std::int64_t number) {
      Module module = known.sample;
      module.path = with_layers(known.pattern, std::to_string(number));
      module.layer = known.layers.empty() ? -1 : number;
      if (!(rule.selects ? rule.selects(module) : matches(rule.pattern, module.path))) return;
      any = true;
      if (module.layer >= 0) layers.push_back(number);
    };
    if (known.layers.empty()) ask(0);
    for (const std::int64_t number : known.layers) ask(number);
    if (!any) continue;
    const std::string text = layers.size() == known.layers.size() ? "*"
                             : layers.size() == 1                 ? std::to_string(layers[0])
                                                  : fmt::format("{{{}}}", fmt::join(layers, ","));
    selected.push_back({&known, with_layers(known.pattern, text), layers});
  }
  return selected;
}

std::vector<SelectedModule> ModuleTable::ends_of_block(std::string_view pattern, bool first) const {
  std::string layer = "*";
  const std::string general = any_layer(pattern, &layer);
  std::vector<SelectedModule> ends;
  for (const KnownBlock& block : blocks_) {
    if (block.pattern != general) continue;
    const KnownModule* end = first ? block.first : block.last;
    ends.push_back({end, with_layers(end->pattern, layer), {}});
  }
  return ends;
}

std::vector<const KnownModule*> ModuleTable::producers(const KnownModule& module) const {
  std::vector<const KnownModule*> found;
  for (const KnownModule& other : modules_) {
    if (parent(other.pattern) != parent(module.pattern)) continue;
    const bool feeds = module.sample.role == ModuleRole::o
                           ? is_one_of(other.sample.role,
                                       {ModuleRole::q, ModuleRole::k, ModuleRole::v, ModuleRole::qkv})
                           : module.sample.role == ModuleRole::down &&
                                 is_one_of(other.sample.role, {ModuleRole::gate, ModuleRole::up,
                                                               ModuleRole::gate_up, ModuleRole::fc});
    if (feeds) found.push_back(&other);
  }
  return found;
}

std::string ModuleTable::nearest(std::string_view pattern) const {
  std::vector<std::string> names;
  for (const KnownModule& module : modules_) names.push_back(module.pattern);
  return nearest_name(any_layer(pattern), names);
}

}  // namespace shardcheck
