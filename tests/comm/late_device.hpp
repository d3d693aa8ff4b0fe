// SPDX-License-Identifier: Apache-2.0
// The cpu device behind lazy streams: a call returns before its work is done, which runs when the host waits for the
// stream, in an order that the events allow. Work of two streams on the same bytes that no event orders is an error,
// whatever order it ran in.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device.hpp"

namespace shardcheck::testing {

/// `seed` chooses among the legal orders. Synchronising a stream, or taking what was read from it, throws DeviceError
/// if two accesses raced by then.
std::unique_ptr<Device> make_late_device(std::uint64_t seed);

}  // namespace shardcheck::testing
