// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_module.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "kernels/shared_module.hpp"
#include "model/error.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string mapped_files() {
  std::ifstream maps("/proc/self/maps");
  std::ostringstream text;
  text << maps.rdbuf();
  return text.str();
}

std::string refusal(const std::string& kind) {
  try {
    module_device_kind(kind).make(1);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

const DeviceModule* fake() {
  std::string why;
  return static_cast<const DeviceModule*>(module_symbol("fake", "shardcheck_device_module", why));
}

TEST(DeviceModule, ExceptionsCrossTheBorderByType) {
  ASSERT_NE(fake(), nullptr);
  EXPECT_THROW(fake()->make(0), InputError);
  EXPECT_THROW(fake()->make(1), ShapeError);
  EXPECT_THROW(fake()->make(2), DeviceError);
  EXPECT_EQ(refusal("fake"), "from the module");
}

TEST(DeviceModule, ForAsManyRanksAsThereAreDevicesEachHasItsOwn) {
  EXPECT_EQ(module_device_kind("fake").describe(), "three that throw");
  EXPECT_THROW(module_device_kind("fake").make(3), InputError);  // the first of three is made first
}

TEST(DeviceModule, AnotherBuildsModuleIsRefused) {
  EXPECT_THAT(refusal("old"), HasSubstr("belongs to another build of shardcheck (version 0"));
  EXPECT_THAT(module_device_kind("old").describe(), StartsWith("none: libshardcheck_old.so belongs"));
}

TEST(DeviceModule, AFileThatIsNoModuleIsRefused) {
  EXPECT_THAT(refusal("strange"), HasSubstr("undefined symbol: shardcheck_device_module"));
}

TEST(DeviceModule, AMissingModuleSaysWhereItWasLookedFor) {
  const std::string message = refusal("absent");
  EXPECT_THAT(message, HasSubstr("device 'absent' is not available: libshardcheck_absent.so was not built"));
  const std::string folders = std::getenv("SHARDCHECK_MODULES");
  EXPECT_THAT(message, HasSubstr("looked in " + folders.substr(0, folders.find(':')) + ", "));
}

TEST(DeviceModule, CudaIsOpenedWhenAskedForAndSaysWhyItIsNotThere) {
  const DeviceRegistry devices = builtin_devices();
  EXPECT_THAT(mapped_files(), Not(HasSubstr("libshardcheck_cuda")));
  EXPECT_THAT(mapped_files(), Not(HasSubstr("libcublasLt")));
  const std::string described = devices.describe("cuda");
  EXPECT_NE(described, "");
  if (!described.starts_with("none: ")) return;
  EXPECT_GT(described.size(), std::string("none: ").size());
  EXPECT_THROW(devices.make("cuda"), InputError);
  EXPECT_THAT(refusal("cuda"), HasSubstr(described.substr(6)));
  std::string why;
  const auto* module = static_cast<const DeviceModule*>(module_symbol("cuda", "shardcheck_device_module", why));
  if (module == nullptr) return;
  EXPECT_THROW(module->make(0), InputError);
}

}  // namespace
}  // namespace shardcheck
