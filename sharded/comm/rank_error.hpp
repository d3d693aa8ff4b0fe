// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace shardcheck {

/// Rethrows with "rank 2: " before the message. The exceptions of model/error.hpp and the plain ones of <stdexcept>
/// keep their type; any other is rethrown as it is, since only its own class could make one with another message.
[[noreturn]] void rethrow_with_rank(const std::exception_ptr& exception, int rank);

/// The message of an exception, whatever it is.
std::string message_of(const std::exception_ptr& exception);

/// For another process: which of the types that rethrow_with_rank keeps, as a number; that of std::runtime_error for
/// all others.
int type_number(const std::exception_ptr& exception);
[[noreturn]] void throw_numbered(int type_number, const std::string& message);

}  // namespace shardcheck
