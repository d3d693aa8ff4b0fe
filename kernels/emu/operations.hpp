// SPDX-License-Identifier: Apache-2.0
// What a running CUDA thread asks of its block: to wait for other threads, and for shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

#include "kernels/emu/shared_memory.hpp"
#include "kernels/emu/warp.hpp"

namespace shardcheck::emu {

/// Waits until all threads of the block are here; returns for how many of them `predicate` was true. `name` tells
/// barriers apart.
int block_barrier(const char* name, bool predicate, const std::source_location& at);

/// Waits until the lanes that `mask` names are here with the same operation and mask; returns what
/// operation.combine made of their values for this lane.
std::uint64_t warp_operation(const WarpOperation& operation, std::uint32_t mask, std::uint64_t value,
                             unsigned source_lane, const std::source_location& at);

/// The array that `site`, an address that stands for a place in the source, declares. Sizes in elements and bytes.
SharedArray& fixed_shared(const void* site, const char* name, std::size_t count, std::size_t element);
/// The launch's dynamic shared memory as elements of `element` bytes.
SharedArray& dynamic_shared(const char* name, std::size_t element);

}  // namespace shardcheck::emu
