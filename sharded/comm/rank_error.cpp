// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/rank_error.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <typeinfo>

#include "model/error.hpp"

namespace shardcheck {
namespace {

/// A type whose exceptions can be made anew with another message.
struct Type {
  /// Of an E and nothing derived from it, whose type would be lost.
  bool (*is)(const std::exception&);
  [[noreturn]] void (*raise)(const std::string& message);
};

template <typename E>
constexpr Type kType{[](const std::exception& error) { return typeid(error) == typeid(E); },
                     [](const std::string& message) { throw E(message); }};

constexpr Type kTypes[] = {
    kType<std::runtime_error>, kType<InputError>,        kType<PlacementError>,
    kType<ShapeError>,         kType<DeviceError>,       kType<CommError>,
    kType<std::logic_error>,   kType<std::out_of_range>, kType<std::invalid_argument>};

const Type* type_of(const std::exception& error) {
  for (const Type& type : kTypes) {
    if (type.is(error)) return &type;
  }
  return nullptr;
}

}  // namespace

void rethrow_with_rank(const std::exception_ptr& exception, int rank) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    if (const Type* const type = type_of(error))
      type->raise(fmt::format("rank {}: {}", rank, error.what()));
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

int type_number(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    const Type* const type = type_of(error);
    return type == nullptr ? 0 : static_cast<int>(type - kTypes);
  } catch (...) {
    return 0;
  }
}

void throw_numbered(int type_number, const std::string& message) {
  const bool known = 0 <= type_number && type_number < static_cast<int>(std::size(kTypes));
  kTypes[known ? type_number : 0].raise(message);
}

}  // namespace shardcheck
