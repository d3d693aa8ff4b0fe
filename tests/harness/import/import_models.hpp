// SPDX-License-Identifier: Apache-2.0
// Models and files for the importers' tests.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "harness/import/import.hpp"
#include "model/config.hpp"
#include "model/model.hpp"
#include "model/sources.hpp"

namespace shardcheck::testing {

struct ImportShape {
  std::string model_type = "llama";
  int heads = 16, kv_heads = 8, head_dim = 8, hidden = 40, inner = 72, vocab = 96;
};

/// Two layers, weights from a seed.
inline Model import_model(const ImportShape& shape) {
  Config config = parse_config(
      fmt::format(R"({{"model_type": "{}", "hidden_size": {}, "num_attention_heads": {}, "num_key_value_heads": {},
                       {} "intermediate_size": {}, "num_hidden_layers": 2, "vocab_size": {},
                       "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                       "hidden_act": "silu", "tie_word_embeddings": false}})",
                  shape.model_type, shape.hidden, shape.heads, shape.kv_heads,
                  shape.hidden == shape.heads * shape.head_dim
                      ? ""
                      : fmt::format("\"head_dim\": {},", shape.head_dim),
                  shape.inner, shape.vocab),
      "config.json");
  auto source = synthetic_source(7, modules(config));
  return Model(std::move(config), std::move(source));
}

inline ImportedPlan imported(const std::string& text, ImportSource source,
                             const Model* model = nullptr, bool repaired = false) {
  ImportOptions options;
  options.source = source;
  options.model = model;
  options.repair = repaired;
  options.sizes = {1, 2, 3, 4, 8};
  return import_plan(text, "theirs.json", options);
}

/// The plan as it comes back from its file.
inline Plan written_and_read(const ImportedPlan& plan) {
  return parse_plan(write_plan(plan.plan, plan.remarks), "written.json");
}

inline Mesh tp(int ranks) { return Mesh{{{"tp", ranks}}}; }

}  // namespace shardcheck::testing
