// SPDX-License-Identifier: Apache-2.0
#include "model/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/config_fields.hpp"
#include "model/config_keys.hpp"
#include "model/config_rope.hpp"
#include "model/error.hpp"
#include "model/json_text.hpp"
#include "model/modules.hpp"
#include "model/shipped.hpp"

namespace shardcheck {
namespace {

// Wide enough for any model, narrow enough that rows x columns x 8 bytes fits 63 bits.
constexpr IntRange kExtent{1, std::int64_t{1} << 27};
constexpr IntRange kEntries{1, std::int64_t{1} << 31};
constexpr IntRange kLayers{1, 10000};

/// What transformers assumes where a llama-like config.json says nothing.
struct LlamaDefaults {
  std::optional<std::int64_t> num_kv_heads;  // none: as many as q heads
  std::int64_t max_positions;
  double norm_eps = 1e-6;
  std::optional<std::int64_t> head_dim{};  // none: hidden_size / num_attention_heads
};

LlamaDefaults llama_defaults(std::string_view model_type) {
  if (model_type == "mistral") return {8, 4096 * 32};
  if (model_type == "qwen2") return {32, 32768};
  if (model_type == "qwen3") return {32, 32768, 1e-6, 128};
  if (model_type == "olmo2") return {std::nullopt, 2048, 1e-5};
  if (model_type == "phi3") return {std::nullopt, 4096, 1e-5};
  return {std::nullopt, 2048};
}

Family family_of(std::string_view model_type) {
  if (model_type == "gpt2") return Family::gpt2;
  if (model_type == "qwen3") return Family::qwen3;
  if (model_type == "olmo2") return Family::olmo2;
  if (model_type == "phi3") return Family::phi3;
  return Family::llama;
}

bool is_ignored(const ConfigOptions& options, std::string_view key) {
  return std::find(options.ignored_keys.begin(), options.ignored_keys.end(), key) !=
         options.ignored_keys.end();
}

void check_keys(const ConfigFields& fields, const ConfigKeyTable& table, const ConfigOptions& options) {
  std::vector<std::string> known;
  known.insert(known.end(), table.used.begin(), table.used.end());
  known.insert(known.end(), table.without_effect.begin(), table.without_effect.end());
  for (const RefusedKey& refused : table.refused) known.emplace_back(refused.key);

  for (const auto& [key, value] : fields.object().items()) {
    if (is_ignored(options, key)) continue;
    const auto refused = std::find_if(table.refused.begin(), table.refused.end(),
                                      [&](const RefusedKey& entry) { return entry.key == key; });
    if (refused != table.refused.end()) {
      const bool neutral = value.is_null() || (value.is_structured() && value.empty()) ||
                           value == nlohmann::json::parse(refused->neutral);
      if (!neutral) {
        fields.fail(key,
                    fmt::format("for {} only {} is supported", table.model_type, refused->neutral),
                    fmt::format("use another model, or --ignore-key {} to go on as if it were {}",
                                key, refused->neutral));
      }
    } else if (std::find(known.begin(), known.end(), key) == known.end()) {
      fields.fail(
          key,
          fmt::format(
              "it is in none of the key lists of {} (nearest: \"{}\"), so it may change the model",
              table.model_type, nearest_name(key, known)),
          fmt::format("use --ignore-key {} if it doesn't", key));
    }
  }
}

DType checkpoint_dtype(const ConfigFields& fields) {
  // transformers 5 writes "dtype", older versions "torch_dtype".
  const std::string_view key = fields.has("dtype") ? "dtype" : "torch_dtype";
  std::string word = fields.text(key, "float32");
  if (word.rfind("torch.", 0) == 0) word = word.substr(6);
  const std::optional<DType> dtype = parse_float_dtype(word);
  if (!dtype)
    fields.fail(key, "it must be float64, float32, float16 or bfloat16", "correct it in the file");
  return *dtype;
}

std::optional<std::int64_t> window_size(const ConfigFields& fields,
                                        std::optional<std::int64_t> fallback) {
  // Absent means the default, null means none: the two differ here.
  if (!fields.object().contains("sliding_window")) return fallback;
  if (!fields.has("sliding_window")) return std::nullopt;
  return fields.integer("sliding_window", kEntries);
}

/// qwen2 and qwen3 name each layer's kind in `layer_types`, or give the first layer that has a window.
void set_qwen_windows(const ConfigFields& fields, Config& config) {
  const std::optional<std::int64_t> size = fields.boolean("use_sliding_window", false)
                                               ? window_size(fields, 4096)
                                               : std::nullopt;
  const std::int64_t first = fields.integer("max_window_layers", {0, kLayers.max}, 28);
  const nlohmann::json* types = fields.find("layer_types");
  const auto layers = static_cast<std::size_t>(config.num_layers);
  if (types != nullptr && (!types->is_array() || types->size() != layers)) {
    fields.fail("layer_types",
                fmt::format("it must be a list of num_hidden_layers = {} words", layers),
                "correct it in the file");
  }
  for (std::size_t layer = 0; layer < layers; ++layer) {
    bool windowed = size.has_value() && static_cast<std::int64_t>(layer) >= first;
    if (types != nullptr) {
      const nlohmann::json& type = (*types)[layer];
      if (type != "sliding_attention" && type != "full_attention") {
        fields.fail(
            "layer_types",
            fmt::format("entry {} is {}, it must be \"full_attention\" or \"sliding_attention\"",
                        layer, quoted(type)),
            "correct it in the file");
      }
      windowed = type == "sliding_attention";
      if (windowed && !size) {
        fields.fail("layer_types",
                    fmt::format("entry {} is \"sliding_attention\", but there is no window", layer),
                    "set use_sliding_window and sliding_window, or change the entry");
      }
    }
    if (windowed) config.windows[layer] = size;
  }
}

void read_llama(const ConfigFields& fields, Config& config) {
  const LlamaDefaults defaults = llama_defaults(config.model_type);
  config.hidden_size = fields.integer("hidden_size", kExtent);
  config.intermediate_size = fields.integer("intermediate_size", kExtent);
  config.num_layers = fields.integer("num_hidden_layers", kLayers);
  config.num_heads = fields.integer("num_attention_heads", kExtent);
  config.vocab_size = fields.integer("vocab_size", kEntries);
  // Here null is not absent: it means as many as q heads, whatever the default.
  const bool one_for_each = fields.object().contains("num_key_value_heads") &&
                            !fields.has("num_key_value_heads");
  config.num_kv_heads = fields.integer(
      "num_key_value_heads", kExtent,
      one_for_each ? config.num_heads : defaults.num_kv_heads.value_or(config.num_heads));
  config.max_positions = fields.integer("max_position_embeddings", kEntries, defaults.max_positions);
  config.norm_eps = fields.number("rms_norm_eps", 0.0, 1.0, defaults.norm_eps);
  config.tied_embeddings = fields.boolean("tie_word_embeddings", false);

  if (config.num_heads % config.num_kv_heads != 0) {
    fields.fail("num_key_value_heads",
                fmt::format("it must divide num_attention_heads = {} (absent means {})",
                            config.num_heads, config.num_kv_heads),
                "correct one of the two in the file");
  }
  if (!fields.has("head_dim") && !defaults.head_dim && config.hidden_size % config.num_heads != 0) {
    fields.fail(
        "hidden_size",
        fmt::format("without \"head_dim\" it must be a multiple of num_attention_heads = {}",
                    config.num_heads),
        "correct one of the two, or add head_dim");
  }
  config.head_dim = fields.integer(
      "head_dim", kExtent, defaults.head_dim.value_or(config.hidden_size / config.num_heads));
  if (config.q_size() > kExtent.max) {
    fields.fail("num_attention_heads",
                fmt::format("times head_dim {} it must be at most {}", config.head_dim, kExtent.max),
                "correct one of the two in the file");
  }
  const std::string act = fields.text("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    fields.fail("hidden_act", "for this family only \"silu\" is supported", "use another model");
  }
  config.activation = Activation::silu;

  const std::string& type = config.model_type;
  if (type == "llama" || type == "qwen3" || type == "olmo2") {
    // transformers gives o_proj a bias together with q, k and v.
    config.qkv_bias = config.o_bias = fields.boolean("attention_bias", false);
  }
  if (type == "llama") config.mlp_bias = fields.boolean("mlp_bias", false);
  if (type == "qwen2") config.qkv_bias = true;

  config.windows.assign(static_cast<std::size_t>(config.num_layers), std::nullopt);
  if (type == "qwen2" || type == "qwen3") set_qwen_windows(fields, config);
  if (type == "mistral")
    std::fill(config.windows.begin(), config.windows.end(), window_size(fields, 4096));
  if (type == "phi3")
    std::fill(config.windows.begin(), config.windows.end(), window_size(fields, std::nullopt));
}

void read_gpt2(const ConfigFields& fields, Config& config) {
  config.hidden_size = fields.integer("n_embd", kExtent);
  config.num_layers = fields.integer("n_layer", kLayers);
  config.num_heads = fields.integer("n_head", kExtent);
  config.num_kv_heads = config.num_heads;
  config.vocab_size = fields.integer("vocab_size", kEntries);
  config.max_positions = fields.integer("n_positions", kEntries, 1024);
  config.intermediate_size = fields.integer("n_inner", kExtent, 4 * config.hidden_size);
  config.norm_eps = fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5);
  config.tied_embeddings = fields.boolean("tie_word_embeddings", true);
  if (config.hidden_size % config.num_heads != 0) {
    fields.fail("n_embd", fmt::format("it must be a multiple of n_head = {}", config.num_heads),
                "correct one of the two in the file");
  }
  config.head_dim = config.hidden_size / config.num_heads;
  const std::string act = fields.text("activation_function", "gelu_new");
  if (act != "gelu_new" && act != "gelu_pytorch_tanh") {
    fields.fail("activation_function", "only \"gelu_new\" and \"gelu_pytorch_tanh\" are supported",
                "use another model");
  }
  config.activation = Activation::gelu_tanh;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  config.windows.assign(static_cast<std::size_t>(config.num_layers), std::nullopt);
}

void cut_depth(Config& config, std::int64_t layers, const std::string& origin) {
  if (layers < 1 || layers > config.num_layers) {
    throw InputError(fmt::format("--layers {}: {} has {} layers; give a number from 1 to {}",
                                 layers, origin, config.num_layers, config.num_layers));
  }
  config.num_layers = layers;
  config.windows.resize(static_cast<std::size_t>(layers));
}

std::string name_of(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.parent_path();
  return file.filename() == "config.json" && folder.has_filename() ? folder.filename().string()
                                                                   : file.stem().string();
}

}  // namespace

Config parse_config(std::string_view json_text, const std::string& origin,
                    const ConfigOptions& options) {
  const nlohmann::json document = parse_json(json_text, origin);
  if (!document.is_object()) {
    throw InputError(
        fmt::format("{}: a config is a JSON object, this is {}; give a Hugging Face config.json",
                    origin, quoted(document)));
  }
  const ConfigFields fields(document, origin);
  Config config;
  config.name = name_of(origin);
  config.model_type = fields.text("model_type");
  const ConfigKeyTable* table = find_config_keys(config.model_type);
  if (table == nullptr) {
    fields.fail("model_type",
                fmt::format("it must be one of {}", fmt::join(known_model_types(), ", ")),
                "use a model of these architectures");
  }
  check_keys(fields, *table, options);
  config.family = family_of(config.model_type);

  if (config.model_type == "gpt2") {
    read_gpt2(fields, config);
  } else {
    read_llama(fields, config);
    config.rope = read_rope(fields, origin, options);
    if (config.head_dim % 2 != 0) {
      throw InputError(
          fmt::format("{}: head_dim is {} (given, or hidden_size / num_attention_heads); rotary "
                      "embedding turns pairs, so it must be even; correct it in the file",
                      origin, config.head_dim));
    }
  }
  config.checkpoint_dtype = checkpoint_dtype(fields);
  if (options.num_layers) cut_depth(config, *options.num_layers, origin);
  return config;
}

Config read_config(const std::filesystem::path& file, const ConfigOptions& options) {
  return parse_config(read_text(file), file.string(), options);
}

}  // namespace shardcheck
