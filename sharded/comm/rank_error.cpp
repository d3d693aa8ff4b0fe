// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/rank_error.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <typeinfo>

#include "model/error.hpp"

namespace shardcheck {
namespace {

/// Throws if `error` is an E and nothing derived from it, whose type would be lost.
template <typename E>
void rethrow_if(const std::exception& error, const std::string& message) {
  if (typeid(error) == typeid(E)) throw E(message);
}

}  // namespace

void rethrow_with_rank(const std::exception_ptr& exception, int rank) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    const std::string message = fmt::format("rank {}: {}", rank, error.what());
    rethrow_if<InputError>(error, message);
    rethrow_if<PlacementError>(error, message);
    rethrow_if<ShapeError>(error, message);
    rethrow_if<CommError>(error, message);
    rethrow_if<std::runtime_error>(error, message);
    rethrow_if<std::logic_error>(error, message);
    rethrow_if<std::invalid_argument>(error, message);
    rethrow_if<std::out_of_range>(error, message);
    throw;
  }
}

std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception without a message";
  }
}

}  // namespace shardcheck
