// SPDX-License-Identifier: Apache-2.0
// What a launch takes from a kernel's arguments, and which launches are refused.
#include <gmock/gmock.h>

#include <random>

#include "tests/emu/runtime_rig.hpp"

namespace shardcheck::emu {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Scale {
  float factor;
};
struct Operands {
  gpu::View<const float> in;
  Scale scale;
  gpu::View<float> out;
};

__global__ void scale_struct(Operands of, int times) {
  for (int i = 0; i < times; ++i) of.out(0, threadIdx.x) = of.in(0, threadIdx.x) * of.scale.factor;
}

__global__ void sum_terms(gpu::Array<gpu::View<const float>, 4> terms, gpu::View<float> out) {
  float sum = 0;
  for (int i = 0; i < terms.size; ++i) sum += terms[i](0, threadIdx.x);
  out(0, threadIdx.x) = sum;
}

__global__ void take_shared(gpu::View<float> out) {
  DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x] = 1;
  out(0, threadIdx.x) = shared[threadIdx.x];
}

TEST(Launch, FindsViewsInStructsAndArrays) {
  const TestStream a, b;
  const DeviceMatrix<float> x(a, 1, 2, {1, 2}), y(a, 1, 2, {10, 20}), z(a, 1, 2);
  gpu::launch(scale_struct, {"scale", a, dim3(1), dim3(2)}, Operands{x.read(), {3.0f}, z.view()}, 1);
  const gpu::Array<gpu::View<const float>, 4> terms{{x.read(), y.read(), z.read()}, 3};
  const DeviceMatrix<float> sum(b, 1, 2);
  const auto add = [&] { gpu::launch(sum_terms, {"sum", b, dim3(1), dim3(2)}, terms, sum.view()); };
  EXPECT_THAT(device_error(add),
              AllOf(HasSubstr("sum: stream"), HasSubstr("no event lies between them")));
  order(a, b);
  add();
  EXPECT_THAT(sum.values(b), ElementsAre(14, 28));
  gpu::launch(scale_struct, {"scale", a, dim3(1), dim3(2)}, Operands{x.read(), {3.0f}, z.view()}, 1);
  EXPECT_THAT(device_error(add), AllOf(HasSubstr("sum: stream"), HasSubstr("writes in scale")));
  order(b, a);
}

TEST(Launch, ViewsMustLieInOneAllocation) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 2, 4);
  std::vector<float> host(8);
  const gpu::View<float> pageable{host.data(), 2, 4, 4, 1};
  const gpu::View<const float> longer{x.data(), 3, 4, 4, 1};
  EXPECT_THAT(device_error([&] { launch_increment("long", stream, longer, x.view()); }),
              HasSubstr("long: reads bytes 0 to 47 of an allocation of 32 bytes"));
  EXPECT_THAT(device_error([&] { launch_increment("host", stream, x.read(), pageable); }),
              HasSubstr("pageable host memory"));
  const gpu::View<float> odd{reinterpret_cast<float*>(reinterpret_cast<char*>(x.data()) + 2), 1, 1,
                             1, 1};
  EXPECT_THAT(device_error([&] { launch_increment("odd", stream, x.read(), odd); }),
              HasSubstr("multiple"));
  const gpu::View<float> empty{};
  launch_increment("empty", stream, {}, empty);
  stream.synchronize();
}

TEST(Launch, LimitsAreCudas) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 1, {1});
  const auto launching = [&](dim3 grid, dim3 block, std::size_t shared) {
    return device_error([&] {
      gpu::launch(take_shared, {"limits", stream, grid, block, shared}, x.view());
    });
  };
  for (const dim3 block : {dim3(1025), dim3(32, 33), dim3(1, 1, 65), dim3(0)}) {
    EXPECT_THAT(launching(dim3(1), block, 4),
                AllOf(HasSubstr("limits"), HasSubstr("cudaErrorInvalidConfiguration")));
  }
  EXPECT_THAT(launching(dim3(1, 65536), dim3(1), 4), HasSubstr("cudaErrorInvalidConfiguration"));
  EXPECT_THAT(launching(dim3(1, 1, 65536), dim3(1), 4), HasSubstr("cudaErrorInvalidConfiguration"));
  EXPECT_THAT(launching(dim3(1), dim3(1), 48 * 1024 + 4), HasSubstr("cudaErrorInvalidValue"));
  EXPECT_EQ(
      cudaFuncSetAttribute(take_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024 + 1),
      cudaErrorInvalidValue);
  ASSERT_EQ(cudaFuncSetAttribute(take_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024),
            cudaSuccess);
  EXPECT_EQ(launching(dim3(1), dim3(1), 100 * 1024), "");
  EXPECT_THAT(launching(dim3(1), dim3(1), 100 * 1024 + 4), HasSubstr("cudaErrorInvalidValue"));
  EXPECT_EQ(launching(dim3(1), dim3(1), 4), "");
  EXPECT_EQ(launching(dim3(0), dim3(1), 4), "");  // does nothing
  stream.synchronize();
  ASSERT_EQ(cudaFuncSetAttribute(take_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 * 1024),
            cudaSuccess);
}

TEST(Accesses, OverlapAndCoverAreWhatCountingBytesSays) {
  std::mt19937 random(20240611);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int overlapping = 0, covering = 0, said = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<Access> lists[2];
    std::vector<bool> touched[2];
    for (int side = 0; side < 2; ++side) {
      const int rows = draw(1, 5), cols = draw(1, 5), size = draw(0, 1) == 0 ? 1 : 2;
      const int row_stride = draw(-9, 12), col_stride = draw(0, 2) == 0 ? draw(-3, 9) : 1;
      const int base = 200 + draw(-20, 20) * size;
      append_matrix(reinterpret_cast<const void*>(static_cast<std::uintptr_t>(base)),
                    static_cast<std::size_t>(size), rows, cols, row_stride, col_stride, Use::reads,
                    lists[side]);
      touched[side].resize(600);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < cols; ++c) {
          for (int byte = 0; byte < size; ++byte) {
            touched[side][static_cast<std::size_t>(base + (r * row_stride + c * col_stride) * size +
                                                   byte)] = true;
          }
        }
      }
    }
    bool both = false, inside = true, any = false, all = true;
    for (std::size_t i = 0; i < 600; ++i) {
      both |= touched[0][i] && touched[1][i];
      inside &= touched[0][i] || !touched[1][i];
    }
    for (const Access& b : lists[1]) {
      bool covered = false;
      for (const Access& a : lists[0]) {
        any |= overlap(a, b);
        covered |= covers(a, b);
      }
      all &= covered;
    }
    ASSERT_EQ(any, both);
    ASSERT_TRUE(inside || !all);
    overlapping += both ? 1 : 0;
    covering += inside ? 1 : 0;
    said += all ? 1 : 0;
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_LT(overlapping, 19000);
  EXPECT_GT(said, covering / 2);  // sure in most cases
}

}  // namespace
}  // namespace shardcheck::emu
