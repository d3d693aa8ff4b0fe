// SPDX-License-Identifier: Apache-2.0
// What the CPU's linear promises beyond the device's contract: bits that don't depend on the extents.
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

class CpuLinearTest : public testing::TestWithParam<DType> {
 protected:
  HostTensor run(const Tensor& x, const Tensor& w) {
    const Tensor out = rig_.make(GetParam(), x.rows, w.rows);
    rig_.device().linear(rig_.stream(), x, w, nullptr, out);
    return rig_.get(out);
  }

  DeviceRig rig_;
};

TEST_P(CpuLinearTest, AnElementsBitsDontDependOnTheOtherRowsOrColumns) {
  const Matrix x = random_matrix(GetParam(), 103, 1100, 1), w = random_matrix(GetParam(), 61, 1100, 2);
  const Tensor dx = rig_.put(GetParam(), x), dw = rig_.put(GetParam(), w);
  const Tensor whole = rig_.make(GetParam(), 103, 61);
  rig_.device().linear(rig_.stream(), dx, dw, nullptr, whole);
  for (const auto& [begin, end] : {std::pair{0, 1}, {5, 7}, {40, 43}, {99, 103}, {10, 60}}) {
    EXPECT_TRUE(run(dx.row_range(begin, end), dw).bitwise_equal(rig_.get(whole.row_range(begin, end))));
  }
  for (const auto& [begin, end] : {std::pair{0, 1}, {5, 7}, {17, 61}}) {
    EXPECT_TRUE(run(dx, dw.row_range(begin, end)).bitwise_equal(rig_.get(whole.col_range(begin, end))));
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, CpuLinearTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

}  // namespace
}  // namespace shardcheck
