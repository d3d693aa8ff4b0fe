// SPDX-License-Identifier: Apache-2.0
// A device module without a device behind it. Compiled three times: FAKE_VERSION and FAKE_SYMBOL say what is wrong with it.
#include "kernels/device_module.hpp"
#include "model/error.hpp"

namespace {

int count(std::string& why) {
  why = "a device that only throws";
  return 3;
}

std::string describe() { return "three that throw"; }

std::unique_ptr<shardcheck::Device> make(int index) {
  switch (index) {
    case 0: throw shardcheck::InputError("from the module");
    case 1: throw shardcheck::ShapeError("from the module");
    default: throw shardcheck::DeviceError("from the module");
  }
}

}  // namespace

extern "C" {
extern const shardcheck::DeviceModule FAKE_SYMBOL __attribute__((visibility("default")));
const shardcheck::DeviceModule FAKE_SYMBOL = {FAKE_VERSION, count, describe, make};
}
