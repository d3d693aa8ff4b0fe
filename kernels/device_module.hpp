// SPDX-License-Identifier: Apache-2.0
// Kinds of device that live in a shared module. It is opened when a device of the kind is asked for or described, so
// that a start without it costs nothing and needs no driver.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.hpp"

namespace shardcheck {

/// What a device module exports, as `extern "C" const DeviceModule shardcheck_device_module`.
struct DeviceModule {
  /// Must be kDeviceModuleVersion: a module of another build is refused, not tried.
  int version;
  /// Devices of this kind here; 0 and the reason in `why` if there is none. Never throws.
  int (*count)(std::string& why);
  /// One sentence about the devices there are. Never throws.
  std::string (*describe)();
  /// Device number `index` < count.
  std::unique_ptr<Device> (*make)(int index);
};
inline constexpr int kDeviceModuleVersion = 3;

/// The kind that libshardcheck_<name>.so holds. One device for each rank if there are as many, else all ranks on the
/// first. make throws InputError with the reason where there is no module, no driver or no device.
DeviceKind module_device_kind(const std::string& name);

}  // namespace shardcheck
