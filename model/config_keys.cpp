// SPDX-License-Identifier: Apache-2.0
// Source of the lists: the configuration and modelling files of these architectures in Hugging Face transformers 4 and 5, and PretrainedConfig's own fields.
#include "model/config_keys.hpp"

#include <fmt/format.h>

#include "model/config.hpp"
#include "model/error.hpp"

namespace shardcheck {
namespace {

using Keys = std::vector<std::string_view>;

Keys join(Keys first, const Keys& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// PretrainedConfig: generation, tokens, training, class labels and book-keeping.
const Keys& general_without_effect() {
  static const Keys keys = {"_name_or_path",
                            "name_or_path",
                            "architectures",
                            "transformers_version",
                            "_attn_implementation",
                            "attn_implementation",
                            "_attn_implementation_autoset",
                            "_attn_implementation_internal",
                            "_commit_hash",
                            "_experts_implementation",
                            "use_cache",
                            "return_dict",
                            "return_dict_in_generate",
                            "output_attentions",
                            "output_hidden_states",
                            "output_past",
                            "output_scores",
                            "torchscript",
                            "use_bfloat16",
                            "tf_legacy_loss",
                            "initializer_range",
                            "gradient_checkpointing",
                            "attention_dropout",
                            "hidden_dropout",
                            "chunk_size_feed_forward",
                            "tie_encoder_decoder",
                            "is_decoder",
                            "bos_token_id",
                            "eos_token_id",
                            "pad_token_id",
                            "sep_token_id",
                            "unk_token_id",
                            "decoder_start_token_id",
                            "forced_bos_token_id",
                            "forced_eos_token_id",
                            "suppress_tokens",
                            "begin_suppress_tokens",
                            "tokenizer_class",
                            "prefix",
                            "task_specific_params",
                            "problem_type",
                            "finetuning_task",
                            "id2label",
                            "label2id",
                            "num_labels",
                            "max_length",
                            "min_length",
                            "max_new_tokens",
                            "do_sample",
                            "early_stopping",
                            "num_beams",
                            "num_beam_groups",
                            "diversity_penalty",
                            "temperature",
                            "top_k",
                            "top_p",
                            "typical_p",
                            "repetition_penalty",
                            "length_penalty",
                            "no_repeat_ngram_size",
                            "encoder_no_repeat_ngram_size",
                            "bad_words_ids",
                            "num_return_sequences",
                            "remove_invalid_values",
                            "exponential_decay_length_penalty",
                            "transformers.js_config"};
  return keys;
}

const std::vector<RefusedKey>& general_refused() {
  static const std::vector<RefusedKey> keys = {{"quantization_config", "null"},
                                               {"compression_config", "null"},
                                               {"auto_map", "null"},
                                               {"pruned_heads", "{}"},
                                               {"is_encoder_decoder", "false"},
                                               {"add_cross_attention", "false"},
                                               {"cross_attention_hidden_size", "null"}};
  return keys;
}

ConfigKeyTable llama_like(std::string_view model_type, const Keys& more_used,
                          const Keys& more_without_effect,
                          const std::vector<RefusedKey>& more_refused) {
  ConfigKeyTable table;
  table.model_type = model_type;
  table.used = join(
      {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
       "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps",
       "hidden_act", "rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings",
       "torch_dtype", "dtype"},
      more_used);
  table.without_effect = join(general_without_effect(), more_without_effect);
  table.refused = general_refused();
  table.refused.push_back({"partial_rotary_factor", "1.0"});
  table.refused.insert(table.refused.end(), more_refused.begin(), more_refused.end());
  return table;
}

/// Checkpoints of this family bring a copy of the modelling code beside them and name it in auto_map; transformers has the
/// architecture of its own. The biases are not read by it, and original_max_position_embeddings by longrope alone.
ConfigKeyTable phi3_table() {
  ConfigKeyTable table = llama_like(
      "phi3", {"sliding_window"},
      {"auto_map", "resid_pdrop", "embd_pdrop", "original_max_position_embeddings"},
      {{"attention_bias", "false"},
       {"mlp_bias", "false"},
       {"lm_head_bias", "false"},
       {"full_attn_mod", "1"},
       {"interpolate_factor", "1"}});
  std::erase_if(table.refused, [](const RefusedKey& refused) { return refused.key == "auto_map"; });
  return table;
}

ConfigKeyTable gpt2_table() {
  ConfigKeyTable table;
  table.model_type = "gpt2";
  table.used = {"model_type",
                "n_embd",
                "n_layer",
                "n_head",
                "n_inner",
                "n_positions",
                "vocab_size",
                "layer_norm_epsilon",
                "activation_function",
                "tie_word_embeddings",
                "torch_dtype",
                "dtype"};
  // reorder_and_upcast_attn computes the scores in f32, as every device here does anyway.
  table.without_effect = join(general_without_effect(),
                              {"n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_type",
                               "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                               "summary_first_dropout", "reorder_and_upcast_attn"});
  table.refused = general_refused();
  table.refused.push_back({"scale_attn_weights", "true"});
  table.refused.push_back({"scale_attn_by_inverse_layer_idx", "false"});
  return table;
}

const std::vector<ConfigKeyTable>& tables() {
  // pretraining_tp only splits the same products into pieces.
  static const std::vector<ConfigKeyTable> all = {
      llama_like("llama", {"attention_bias", "mlp_bias"}, {"pretraining_tp", "is_llama_config"},
                 {{"rope_interleaved", "false"}, {"sliding_window", "null"}}),
      llama_like("mistral", {"sliding_window"}, {},
                 {{"attention_bias", "false"}, {"mlp_bias", "false"}}),
      llama_like("qwen2",
                 {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}, {},
                 {{"use_mrope", "false"}, {"attention_bias", "true"}, {"mlp_bias", "false"}}),
      llama_like("qwen3",
                 {"attention_bias", "sliding_window", "use_sliding_window", "max_window_layers",
                  "layer_types"},
                 {}, {{"mlp_bias", "false"}}),
      llama_like("olmo2", {"attention_bias"}, {},
                 {{"mlp_bias", "false"}, {"sliding_window", "null"}}),
      phi3_table(),
      gpt2_table()};
  return all;
}

}  // namespace

const ConfigKeyTable* find_config_keys(std::string_view model_type) {
  for (const ConfigKeyTable& table : tables()) {
    if (table.model_type == model_type) return &table;
  }
  return nullptr;
}

std::vector<std::string_view> known_model_types() {
  std::vector<std::string_view> names;
  for (const ConfigKeyTable& table : tables()) names.push_back(table.model_type);
  return names;
}

ConfigKeys config_keys(std::string_view model_type) {
  const ConfigKeyTable* table = find_config_keys(model_type);
  if (table == nullptr)
    throw InputError(fmt::format("there is no list of config keys for \"{}\"", model_type));
  ConfigKeys keys;
  keys.used.assign(table->used.begin(), table->used.end());
  keys.without_effect.assign(table->without_effect.begin(), table->without_effect.end());
  for (const RefusedKey& refused : table->refused) keys.refused.emplace_back(refused.key);
  return keys;
}

}  // namespace shardcheck
