// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace shardcheck {

/// Host memory; primitives run at once on the calling thread. Storage f64, f32, bf16, fp16: 16-bit values are widened
/// block by block to f32. An element's bits depend on the rows and columns it is made of and on nothing else: a shard
/// of a column-parallel linear, one token of many, one head of many come out as they do in the whole.
std::unique_ptr<Device> make_cpu_device();

}  // namespace shardcheck
