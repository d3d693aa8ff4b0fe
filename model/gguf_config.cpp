// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/error.hpp"
#include "model/gguf.hpp"

namespace shardcheck {
namespace {

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 27;
constexpr std::int64_t kMaxEntries = std::int64_t{1} << 31;
constexpr std::int64_t kMaxLayers = 10000;

constexpr std::array<std::string_view, 17> kUsedKeys = {"block_count",
                                                        "context_length",
                                                        "embedding_length",
                                                        "feed_forward_length",
                                                        "vocab_size",
                                                        "attention.head_count",
                                                        "attention.head_count_kv",
                                                        "attention.key_length",
                                                        "attention.value_length",
                                                        "attention.layer_norm_rms_epsilon",
                                                        "attention.layer_norm_epsilon",
                                                        "rope.dimension_count",
                                                        "rope.freq_base",
                                                        "rope.scaling.type",
                                                        "rope.scaling.factor",
                                                        "rope.scale_linear",
                                                        "rope.scaling.original_context_length"};

constexpr std::array<std::string_view, 2> kKeysWithoutEffect = {"tensor_data_layout",
                                                                "rope.scaling.finetuned"};

/// Keys accepted only where they say what is computed anyway.
struct NeutralKey {
  std::string_view key;
  double neutral;
};
constexpr std::array<NeutralKey, 7> kNeutralKeys = {{{"expert_count", 0.0},
                                                     {"expert_used_count", 0.0},
                                                     {"attention.sliding_window", 0.0},
                                                     {"attention.causal", 1.0},
                                                     {"use_parallel_residual", 0.0},
                                                     {"logit_scale", 1.0},
                                                     {"rope.scaling.attn_factor", 1.0}}};

std::string shown(const GgufValue& value) {
  struct Shower {
    std::string operator()(const std::string& text) const {
      return fmt::format("\"{}\"", text.substr(0, 60));
    }
    std::string operator()(const GgufArray& list) const {
      return fmt::format("a list of {}", list.count);
    }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(std::int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(std::uint64_t number) const { return fmt::format("{}", number); }
  };
  return std::visit(Shower{}, value);
}

std::optional<double> as_number(const GgufValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1.0 : 0.0;
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(&value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&value)) return static_cast<double>(*number);
  return std::nullopt;
}

/// The metadata keys of one architecture, typed and range-checked.
class Fields {
 public:
  Fields(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  const GgufValue* find(std::string_view key) const {
    const auto it = file_.metadata().find(fmt::format("{}.{}", architecture_, key));
    return it == file_.metadata().end() ? nullptr : &it->second;
  }

  [[noreturn]] void fail(std::string_view key, const std::string& rule) const {
    const GgufValue* value = find(key);
    throw InputError(fmt::format("{}: \"{}.{}\" is {}; {}; use another file", file_.path().string(),
                                 architecture_, key, value == nullptr ? "missing" : shown(*value),
                                 rule));
  }

  std::int64_t integer(std::string_view key, std::int64_t max,
                       std::optional<std::int64_t> fallback = {}) const {
    const std::string rule = fmt::format("it must be an integer from 1 to {}", max);
    const GgufValue* value = find(key);
    if (value == nullptr) {
      if (!fallback) fail(key, rule);
      return *fallback;
    }
    if (const auto* number = std::get_if<std::uint64_t>(value)) {
      if (*number < 1 || *number > static_cast<std::uint64_t>(max)) fail(key, rule);
      return static_cast<std::int64_t>(*number);
    }
    const auto* number = std::get_if<std::int64_t>(value);
    if (number == nullptr || *number < 1 || *number > max) fail(key, rule);
    return *number;
  }

  double number(std::string_view key, double most, std::optional<double> fallback = {}) const {
    const std::string rule = fmt::format("it must be a number above 0 and at most {}", most);
    const GgufValue* value = find(key);
    if (value == nullptr) {
      if (!fallback) fail(key, rule);
      return *fallback;
    }
    const auto* number = std::get_if<double>(value);
    if (number == nullptr || !(*number > 0.0 && *number <= most)) fail(key, rule);
    return *number;
  }

  std::string text(std::string_view key, const std::string& fallback) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return fallback;
    const auto* word = std::get_if<std::string>(value);
    if (word == nullptr) fail(key, "it must be a string");
    return *word;
  }

  /// Refuses keys of the architecture that aren't known, and known ones that ask for something that isn't built.
  void check_keys(const ConfigOptions& options) const {
    const std::string prefix = architecture_ + ".";
    for (const auto& [full, value] : file_.metadata()) {
      if (full.substr(0, prefix.size()) != prefix) continue;
      if (std::find(options.ignored_keys.begin(), options.ignored_keys.end(), full) !=
          options.ignored_keys.end())
        continue;
      const std::string_view key = std::string_view(full).substr(prefix.size());
      const auto neutral = std::find_if(kNeutralKeys.begin(), kNeutralKeys.end(),
                                        [&](const NeutralKey& entry) { return entry.key == key; });
      if (neutral != kNeutralKeys.end()) {
        if (as_number(value) != neutral->neutral)
          fail(key, fmt::format("only {} is supported", neutral->neutral));
      } else if (std::find(kUsedKeys.begin(), kUsedKeys.end(), key) == kUsedKeys.end() &&
                 std::find(kKeysWithoutEffect.begin(), kKeysWithoutEffect.end(), key) ==
                     kKeysWithoutEffect.end()) {
        fail(key,
             fmt::format("this key isn't known and may change the model (--ignore-key {} to go on)",
                         full));
      }
    }
  }

 private:
  const GgufFile& file_;
  std::string architecture_;
};

std::string architecture_of(const GgufFile& file) {
  const auto it = file.metadata().find("general.architecture");
  const auto* word = it == file.metadata().end() ? nullptr : std::get_if<std::string>(&it->second);
  if (word != nullptr && (*word == "olmo2" || *word == "phi3")) {
    throw InputError(fmt::format(
        "{}: \"general.architecture\" is {}, which is read from safetensors only; use the model's "
        "safetensors with its config.json",
        file.path().string(), shown(it->second)));
  }
  if (word == nullptr || (*word != "llama" && *word != "qwen2" && *word != "qwen3" && *word != "gpt2")) {
    throw InputError(fmt::format(
        "{}: \"general.architecture\" is {}; it must be llama, qwen2, qwen3 or gpt2; use another "
        "file",
        file.path().string(), it == file.metadata().end() ? "missing" : shown(it->second)));
  }
  return *word;
}

std::int64_t vocabulary_size(const GgufFile& file, const Fields& fields) {
  const auto it = file.tensors().find("token_embd.weight");
  const bool has_rows = it != file.tensors().end() && it->second.shape.size() == 2;
  const std::int64_t rows = has_rows ? it->second.shape[0] : 0;
  if (fields.find("vocab_size") == nullptr && (rows < 1 || rows > kMaxEntries)) {
    throw InputError(fmt::format(
        "{}: neither a vocab_size nor a token_embd.weight says how many tokens there are; use "
        "another file",
        file.path().string()));
  }
  return fields.integer("vocab_size", kMaxEntries, rows);
}

RopeConfig rope_of(const Fields& fields) {
  RopeConfig rope;
  rope.type = RopeConfig::Type::standard;
  rope.theta = fields.number("rope.freq_base", 1e30, 10000.0);
  const std::string type = fields.text("rope.scaling.type",
                                       fields.find("rope.scale_linear") ? "linear" : "none");
  if (type != "none" && type != "linear")
    fields.fail("rope.scaling.type", "only none and linear are supported");
  if (type == "linear") {
    rope.factor = fields.number(
        fields.find("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear", 1e30);
    if (rope.factor != 1.0) rope.type = RopeConfig::Type::linear;
  }
  return rope;
}

void read_llama(const GgufFile& file, const Fields& fields, Config& config) {
  config.family = config.model_type == "qwen3" ? Family::qwen3 : Family::llama;
  config.num_kv_heads = fields.integer("attention.head_count_kv", kMaxExtent, config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.fail("attention.head_count_kv",
                fmt::format("it must divide attention.head_count = {}", config.num_heads));
  }
  if (fields.find("attention.key_length") == nullptr && config.hidden_size % config.num_heads != 0) {
    fields.fail("embedding_length",
                fmt::format("without attention.key_length it must be a multiple of "
                            "attention.head_count = {}",
                            config.num_heads));
  }
  config.head_dim = fields.integer("attention.key_length", kMaxExtent,
                                   config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0 || config.q_size() > kMaxExtent) {
    fields.fail("attention.key_length",
                "the heads' size must be even, and all heads together must fit 2^27");
  }
  if (fields.integer("attention.value_length", kMaxExtent, config.head_dim) != config.head_dim) {
    fields.fail("attention.value_length", fmt::format("it must be the key length {}", config.head_dim));
  }
  if (fields.integer("rope.dimension_count", kMaxExtent, config.head_dim) != config.head_dim) {
    fields.fail("rope.dimension_count",
                fmt::format("only whole heads of {} can be rotated", config.head_dim));
  }
  config.norm_eps = fields.number("attention.layer_norm_rms_epsilon", 1.0);
  config.activation = Activation::silu;
  config.rope = rope_of(fields);
  const auto has = [&](const char* name) { return file.tensors().count(name) > 0; };
  config.qkv_bias = config.model_type == "qwen2" || has("blk.0.attn_q.bias");
  config.o_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_gate.bias");
}

void read_gpt2(const Fields& fields, Config& config) {
  config.family = Family::gpt2;
  config.num_kv_heads = config.num_heads;
  if (fields.integer("attention.head_count_kv", kMaxExtent, config.num_heads) != config.num_heads) {
    fields.fail("attention.head_count_kv",
                fmt::format("it must be attention.head_count = {}", config.num_heads));
  }
  if (config.hidden_size % config.num_heads != 0) {
    fields.fail("embedding_length",
                fmt::format("it must be a multiple of attention.head_count = {}", config.num_heads));
  }
  config.head_dim = config.hidden_size / config.num_heads;
  config.norm_eps = fields.number("attention.layer_norm_epsilon", 1.0);
  config.activation = Activation::gelu_tanh;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
}

}  // namespace

Config gguf_config(const GgufFile& file, const ConfigOptions& options) {
  Config config;
  config.name = file.path().stem().string();
  config.model_type = architecture_of(file);
  const Fields fields(file, config.model_type);
  fields.check_keys(options);
  config.hidden_size = fields.integer("embedding_length", kMaxExtent);
  config.num_layers = fields.integer("block_count", kMaxLayers);
  config.num_heads = fields.integer("attention.head_count", kMaxExtent);
  config.intermediate_size = fields.integer("feed_forward_length", kMaxExtent);
  config.max_positions = fields.integer("context_length", kMaxEntries);
  config.vocab_size = vocabulary_size(file, fields);
  if (config.model_type == "gpt2") {
    read_gpt2(fields, config);
  } else {
    read_llama(file, fields, config);
  }
  config.tied_embeddings = file.tensors().count("output.weight") == 0;
  const auto first = file.tensors().find("token_embd.weight");
  if (first != file.tensors().end() && is_float(first->second.dtype))
    config.checkpoint_dtype = first->second.dtype;
  if (options.num_layers) {
    if (*options.num_layers < 1 || *options.num_layers > config.num_layers) {
      throw InputError(fmt::format("--layers {}: {} has {} layers; give a number from 1 to {}",
                                   *options.num_layers, file.path().string(), config.num_layers,
                                   config.num_layers));
    }
    config.num_layers = *options.num_layers;
  }
  config.windows.assign(static_cast<std::size_t>(config.num_layers), std::nullopt);
  return config;
}

}  // namespace shardcheck
