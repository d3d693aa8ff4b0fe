// SPDX-License-Identifier: Apache-2.0
// A GPU as the roofline sees it: a file of fixtures/gpus, or the user's own.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/dtype.hpp"
#include "sim/fact.hpp"
#include "sim/units.hpp"

namespace shardcheck::sim {

struct Gpu {
  std::string name;                            // the file's stem, as typed after --gpu: "h100"
  std::string title;                           // "NVIDIA H100 SXM5 80 GB"
  std::map<DType, Fact<FlopsPerSecond>> peak;  // dense, best unit that multiplies this dtype as it is
  std::optional<Fact<FlopsPerSecond>> tf32;  // f32 operands cut to 11 bits: not what this program computes in f32
  Fact<BytesPerSecond> memory_bandwidth;  // reads and writes together
  Fact<Bytes> memory_size;
  std::vector<Constant> constants;  // everything the file states
};

/// Reads a GPU file, schema "shardcheck.gpu/1". Throws InputError naming file, key, rule and remedy.
Gpu read_gpu(const std::filesystem::path& file);
/// By file or shipped name.
Gpu load_gpu(const std::string& file_or_name);

}  // namespace shardcheck::sim
