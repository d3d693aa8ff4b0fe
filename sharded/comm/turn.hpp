// SPDX-License-Identifier: Apache-2.0
// Ranks that take turns: on a device with a turn lock (Device::turn) a rank's host code holds it whenever it runs.
#pragma once

#include <mutex>

#include "kernels/device.hpp"

namespace shardcheck {

/// This rank's turn, for as long as the object lives. Nothing on a device without a turn.
class Turn {
 public:
  explicit Turn(Device& device) : turn_(device.turn()) {
    if (turn_ != nullptr) turn_->lock();
  }
  ~Turn() {
    if (turn_ != nullptr) turn_->unlock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::mutex* turn_;
};

/// Gives the turn up while a rank waits for others under a lock of theirs.
class PausedTurn {
 public:
  explicit PausedTurn(Device& device) : turn_(device.turn()) {
    if (turn_ != nullptr) turn_->unlock();
  }
  /// Takes the turn back. The lock is released meanwhile: who has the turn may need it.
  void resume(std::unique_lock<std::mutex>& lock) {
    if (turn_ == nullptr) return;
    lock.unlock();
    turn_->lock();
    lock.lock();
  }
  PausedTurn(const PausedTurn&) = delete;
  PausedTurn& operator=(const PausedTurn&) = delete;

 private:
  std::mutex* turn_;
};

}  // namespace shardcheck
