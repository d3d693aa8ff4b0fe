// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace shardcheck {

/// Rethrows with "rank 2: " before the message. The exceptions of model/error.hpp and the plain ones of <stdexcept> keep
/// their type; any other is rethrown as it is, since only its own class could make one with another message.
[[noreturn]] void rethrow_with_rank(const std::exception_ptr& exception, int rank);

/// The message of an exception, whatever it is.
std::string message_of(const std::exception_ptr& exception);

}  // namespace shardcheck
