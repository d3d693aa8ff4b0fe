// SPDX-License-Identifier: Apache-2.0
// Readers of other projects' plans, one per project and file: text to ImportedRules. Private to .cpp files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "harness/import/imported_rule.hpp"
#include "harness/import/json_places.hpp"

namespace shardcheck {

/// A parsed file, and where everything stands in it.
struct ImportedFile {
  const nlohmann::json& json;
  const JsonPlaces& places;
  std::string select;      // of a file that holds several plans: which
  std::string model_type;  // of the model, empty without one

  /// The member `path` as an object; fails with its place if it is none.
  const nlohmann::json& object(const JsonPath& path) const;
};

/// `base_model_tp_plan` and `_tp_plan` dictionaries, transformers 4.5x and 5.x.
ImportedRules read_hugging_face(const ImportedFile& file);
/// Styles of torch.distributed.tensor.parallel.parallelize_module.
ImportedRules read_dtensor(const ImportedFile& file);
/// `tensor_parallel.partition_config` of a DeepSpeed configuration.
ImportedRules read_deepspeed(const ImportedFile& file);
/// Class names of vllm.model_executor.layers by module path.
ImportedRules read_vllm(const ImportedFile& file);

}  // namespace shardcheck
