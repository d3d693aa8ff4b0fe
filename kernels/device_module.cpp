// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_module.hpp"

#include <fmt/format.h>

#include "kernels/shared_module.hpp"
#include "model/error.hpp"

namespace shardcheck {
namespace {

const DeviceModule* open_device_module(const std::string& name, std::string& why) {
  return open_module<DeviceModule>(name, "shardcheck_device_module", kDeviceModuleVersion, why);
}

std::vector<std::unique_ptr<Device>> make_devices(const std::string& name, int ranks) {
  std::string why;
  const DeviceModule* const module = open_device_module(name, why);
  const int count = module == nullptr ? 0 : module->count(why);
  if (count == 0) throw InputError(fmt::format("device '{}' is not available: {}", name, why));
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < (count >= ranks ? ranks : 1); ++i) devices.push_back(module->make(i));
  return devices;
}

std::string describe(const std::string& name) {
  std::string why;
  const DeviceModule* const module = open_device_module(name, why);
  if (module == nullptr || module->count(why) == 0) return "none: " + why;
  return module->describe();
}

}  // namespace

DeviceKind module_device_kind(const std::string& name) {
  return {[name](int ranks) { return make_devices(name, ranks); }, [name] { return describe(name); }};
}

}  // namespace shardcheck
