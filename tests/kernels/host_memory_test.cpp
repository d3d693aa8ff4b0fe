// SPDX-License-Identifier: Apache-2.0
// Between host and device: how long host memory is needed, what a read in flight shows, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

TEST(HostMemory, HostMemoryMayGoAsSoonAsItIsUploaded) {
  DeviceRig rig;
  const Matrix x = random_matrix(DType::f32, 7, 9, 1);
  for (const Layout layout : kLayouts) {
    const Tensor out = rig.make(DType::f32, 7, 9, layout);
    {
      HostTensor host = exactly(DType::f32, x);
      rig.device().upload(rig.stream(), host, out);
      std::ranges::fill(host.as_mutable<float>(), 0.0F);
    }
    EXPECT_TRUE(rig.get(out).bitwise_equal(exactly(DType::f32, x)));
  }
}

TEST(HostMemory, AReadOutlivesItsTensorAndLaterWrites) {
  DeviceRig rig;
  const Matrix x = random_matrix(DType::bf16, 5, 6, 1);
  for (const Layout layout : kLayouts) {
    Tensor tensor = rig.put(DType::bf16, x, layout);
    std::unique_ptr<HostRead> read = rig.device().start_read(rig.stream(), tensor);
    rig.device().poison(rig.stream(), tensor);
    tensor = {};
    EXPECT_TRUE(read->take().bitwise_equal(exactly(DType::bf16, x)));
  }
}

TEST(HostMemory, ReadsThatNobodyTakesLeaveTheirBlocksToOthers) {
  DeviceRig rig;
  const Matrix x = random_matrix(DType::f32, 40, 50, 1), y = random_matrix(DType::f32, 40, 50, 2);
  const Tensor first = rig.put(DType::f32, x), second = rig.put(DType::f32, y);
  for (int i = 0; i < 20; ++i) {
    { const auto dropped = rig.device().start_read(rig.stream(), first); }
    const auto kept = rig.device().start_read(rig.stream(), second);
    const auto other = rig.device().start_read(rig.stream(), first);
    EXPECT_TRUE(kept->take().bitwise_equal(exactly(DType::f32, y)));
    EXPECT_TRUE(other->take().bitwise_equal(exactly(DType::f32, x)));
  }
}

TEST(HostMemory, NothingOfAnyExtentIsReadAndWritten) {
  DeviceRig rig;
  for (const auto& [rows, cols] : {std::pair{0, 5}, {5, 0}, {0, 0}}) {
    const Tensor none = rig.device().allocate(rig.stream(), DType::f16, rows, cols);
    rig.device().poison(rig.stream(), none);
    rig.device().upload(rig.stream(), HostTensor(DType::f16, {rows, cols}), none);
    EXPECT_EQ(rig.get(none).shape(), (std::vector<std::int64_t>{rows, cols}));
    EXPECT_EQ(
        rig.get(rig.device().adopt(rig.stream(), HostTensor(DType::f16, {rows, cols}))).elements(), 0);
  }
}

TEST(HostMemory, AnAdoptedTensorIsReadOnly) {
  DeviceRig rig;
  const HostTensor host = exactly(DType::f32, random_matrix(DType::f32, 2, 3, 1));
  const Tensor adopted = rig.device().adopt(rig.stream(), host);
  EXPECT_THROW(rig.device().poison(rig.stream(), adopted), ShapeError);
  EXPECT_THROW(rig.device().upload(rig.stream(), host, adopted), ShapeError);
  EXPECT_TRUE(rig.get(adopted).bitwise_equal(host));
}

TEST(HostMemory, AnUploadOfAnotherShapeOrDtypeIsRefused) {
  DeviceRig rig;
  const Tensor out = rig.make(DType::f32, 2, 3);
  for (const HostTensor& host : {HostTensor(DType::f32, {3, 2}), HostTensor(DType::bf16, {2, 3}),
                                 HostTensor(DType::f32, {2, 3, 1}), HostTensor(DType::f32, {6})}) {
    EXPECT_THROW(rig.device().upload(rig.stream(), host, out), ShapeError);
  }
}

TEST(HostMemory, ThreadsWithStreamsOfTheirOwnShareOneDevice) {
  const auto device = make_test_device();
  const Matrix x = random_matrix(DType::f32, 3, 24, 1), w = random_matrix(DType::f32, 6, 24, 2);
  std::vector<HostTensor> results(4);
  const auto work = [&](std::size_t rank) {
    std::unique_lock<std::mutex> turn;
    if (device->turn() != nullptr) turn = std::unique_lock(*device->turn());
    const auto stream = device->make_stream();
    const Tensor a = device->adopt(*stream, exactly(DType::f32, x));
    const Tensor b = device->adopt(*stream, exactly(DType::f32, w));
    const Tensor out = device->allocate(*stream, DType::f32, 3, 6);
    device->linear(*stream, a, b, nullptr, out);
    results[rank] = device->to_host(*stream, out);
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < results.size(); ++rank) threads.emplace_back(work, rank);
  for (std::thread& thread : threads) thread.join();
  for (const HostTensor& result : results) EXPECT_TRUE(result.bitwise_equal(results[0]));
}

}  // namespace
}  // namespace shardcheck
