// SPDX-License-Identifier: Apache-2.0
// What libshardcheck_cuda.so exports.
#include <fmt/format.h>

#include <exception>
#include <string>
#include <vector>

#include "kernels/cuda/architectures.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/cuda/gpu_device.hpp"
#include "kernels/device_module.hpp"
#include "model/error.hpp"

namespace shardcheck::gpu {
namespace {

constexpr std::string_view kArchitectures = SHARDCHECK_CUDA_ARCHITECTURES;  // "80-real,90-real,100"

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// CUDA's numbers of the GPUs that can run this module's code; the reason in `why` if there is none.
std::vector<int> usable(std::string& why) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    static_cast<void>(cudaRuntimeGetVersion(&runtime));
    why = driver == 0
              ? fmt::format("no NVIDIA driver here (this was built with CUDA {})",
                            version_text(runtime))
              : fmt::format(
                    "the NVIDIA driver is for CUDA {}, this was built with {}; update the driver",
                    version_text(driver), version_text(runtime));
    return {};
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    why = "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES may hide it)";
    return {};
  }
  check(status, "cudaGetDeviceCount");
  std::vector<int> devices;
  for (int device = 0; device < count; ++device) {
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
          "cudaDeviceGetAttribute");
    const int capability = 10 * major + minor;
    if (runs_on(capability, kArchitectures)) {
      devices.push_back(device);
    } else {
      why = fmt::format(
          "GPU {} is sm_{}, and this was built for {}; set SHARDCHECK_CUDA_ARCHITECTURES and build "
          "again",
          device, capability, kArchitectures);
    }
  }
  return devices;
}

int count(std::string& why) {
  try {
    return static_cast<int>(usable(why).size());
  } catch (const std::exception& error) {
    why = error.what();
    return 0;
  }
}

std::string describe() {
  try {
    std::string why, text;
    const std::vector<int> devices = usable(why);
    for (const int device : devices) {
      cudaDeviceProp properties = {};
      check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
      text += fmt::format("{}{} (sm_{}{}, {} GiB)", text.empty() ? "" : ", ", properties.name,
                          properties.major, properties.minor, properties.totalGlobalMem >> 30);
    }
    int driver = 0, runtime = 0;
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    return fmt::format("{}; driver for CUDA {}, runtime {}, cuBLASLt {}",
                       devices.empty() ? "none: " + why : text, version_text(driver),
                       version_text(runtime), cublasLtGetVersion());
  } catch (const std::exception& error) {
    return fmt::format("none: {}", error.what());
  }
}

std::unique_ptr<Device> make(int index) {
  std::string why;
  const std::vector<int> devices = usable(why);
  if (index < 0 || index >= static_cast<int>(devices.size())) {
    throw InputError(fmt::format("device 'cuda': GPU {} of {} was asked for{}{}", index,
                                 devices.size(), why.empty() ? "" : ": ", why));
  }
  return make_gpu_device(devices[static_cast<std::size_t>(index)]);
}

}  // namespace
}  // namespace shardcheck::gpu

extern "C" {
extern const shardcheck::DeviceModule shardcheck_device_module
    __attribute__((visibility("default")));
const shardcheck::DeviceModule shardcheck_device_module = {
    shardcheck::kDeviceModuleVersion, shardcheck::gpu::count, shardcheck::gpu::describe,
    shardcheck::gpu::make};
}
