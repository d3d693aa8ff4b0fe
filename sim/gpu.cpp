// SPDX-License-Identifier: Apache-2.0
#include "sim/gpu.hpp"

#include "model/shipped.hpp"
#include "sim/fact_file.hpp"

namespace shardcheck::sim {

Gpu read_gpu(const std::filesystem::path& path) {
  FactFile file(path, "shardcheck.gpu/1");
  Gpu gpu;
  gpu.name = path.stem().string();
  gpu.title = file.text("name");
  const auto keep = [&](auto fact) {
    gpu.constants.push_back(fact.stated);
    return fact;
  };
  FactFile peak = file.object("peak");
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const std::string_view key = name(dtype);
    if (peak.has(key)) gpu.peak[dtype] = keep(peak.compute(key));
  }
  if (peak.has("tf32")) gpu.tf32 = keep(peak.compute("tf32"));
  peak.finish();
  if (gpu.peak.empty())
    file.refuse("peak", "states no rate; add at least one of f64, f32, bf16, fp16");
  gpu.memory_bandwidth = keep(file.memory_bandwidth("memory_bandwidth"));
  gpu.memory_size = keep(file.size("memory_size"));
  file.finish();
  return gpu;
}

Gpu load_gpu(const std::string& file_or_name) {
  return read_gpu(find_shipped("gpus", file_or_name));
}

}  // namespace shardcheck::sim
