// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/cpu/cpu_device.hpp"
#include "kernels/device.hpp"
#include "kernels/device_module.hpp"
#include "kernels/emu/emu_device.hpp"
#include "kernels/meta/meta_device.hpp"
#include "model/error.hpp"

namespace shardcheck {
namespace {

/// A kind of which one device serves all ranks.
DeviceKind shared_kind(std::unique_ptr<Device> (*make)(), std::string sentence) {
  return {[make](int) {
            std::vector<std::unique_ptr<Device>> devices;
            devices.push_back(make());
            return devices;
          },
          [sentence = std::move(sentence)] { return sentence; }};
}

}  // namespace

const DeviceKind& DeviceRegistry::entry(const std::string& kind) const {
  const auto found = entries_.find(kind);
  if (found == entries_.end()) {
    throw InputError(fmt::format("device '{}' is unknown; there are: {}", kind, fmt::join(kinds(), ", ")));
  }
  return found->second;
}

std::vector<std::unique_ptr<Device>> DeviceRegistry::make_for(const std::string& kind, int ranks) const {
  return entry(kind).make(ranks);
}

std::string DeviceRegistry::describe(const std::string& kind) const { return entry(kind).describe(); }

std::vector<std::string> DeviceRegistry::kinds() const {
  std::vector<std::string> result;
  for (const auto& [kind, entry] : entries_) result.push_back(kind);
  return result;
}

DeviceRegistry builtin_devices() {
  DeviceRegistry devices;
  devices.add("cpu", shared_kind(make_cpu_device, "this CPU, one thread per rank"));
  devices.add("meta", shared_kind(make_meta_device, "shapes without values"));
  devices.add("emu", shared_kind(make_emu_device, "the CUDA device's code and kernels, run on this CPU"));
  devices.add("cuda", module_device_kind("cuda"));
  return devices;
}

}  // namespace shardcheck
