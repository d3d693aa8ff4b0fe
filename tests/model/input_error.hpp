// SPDX-License-Identifier: Apache-2.0
// What an InputError says.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "model/error.hpp"

namespace shardcheck {

/// The message of the InputError that `action` throws; a test failure and "" if it throws none.
template <typename Action>
std::string input_error(Action action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no InputError was thrown";
  return "";
}

}  // namespace shardcheck
