// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/cpu/cpu_device.hpp"
#include "kernels/device.hpp"
#include "kernels/meta/meta_device.hpp"
#include "model/error.hpp"

namespace shardcheck {

std::unique_ptr<Device> DeviceRegistry::make(const std::string& kind) const {
  const auto found = factories_.find(kind);
  if (found == factories_.end()) {
    throw InputError(fmt::format("device '{}' is unknown; there are: {}", kind, fmt::join(kinds(), ", ")));
  }
  return found->second();
}

std::vector<std::string> DeviceRegistry::kinds() const {
  std::vector<std::string> result;
  for (const auto& [kind, factory] : factories_) result.push_back(kind);
  return result;
}

DeviceRegistry builtin_devices() {
  DeviceRegistry devices;
  devices.add("cpu", make_cpu_device);
  devices.add("meta", make_meta_device);
  return devices;
}

}  // namespace shardcheck
