// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace shardcheck {

/// How long ranks wait for what should come at once, where a deadlock can't be seen as such: other processes, and work
/// on GPUs. The environment variable SHARDCHECK_TIMEOUT in seconds, default 300. Throws InputError if that is no
/// positive number.
std::chrono::milliseconds comm_timeout();

}  // namespace shardcheck
