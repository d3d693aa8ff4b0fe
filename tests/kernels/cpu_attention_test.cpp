// SPDX-License-Identifier: Apache-2.0
// What the CPU's attention promises beyond the device's contract: bits that don't depend on the extents.
#include "tests/kernels/attention_rig.hpp"

namespace shardcheck {
namespace {

using Case = AttentionCase;
using CpuAttentionTest = AttentionTest;

TEST_P(CpuAttentionTest, AQuerysBitsDependOnItsOwnRowAndKeysAlone) {
  const Case c = make_case(70, 330, 16, {0, 1, 1}, 260);
  const Tensor q = rig_.put(GetParam(), queries(c)), k = rig_.put(GetParam(), keys(c)),
               v = rig_.put(GetParam(), values(c));
  const AttentionState all = partial(c, q, k, v);
  for (const std::int64_t i : {0, 31, 33, 69}) {
    Case one = c;
    one.shape.q_first += i;
    // Keys behind the query's position are left out: they were masked before.
    const std::int64_t end = one.shape.q_first + 1;
    const AttentionState alone = partial(one, q.row_range(i, i + 1), k.row_range(0, end),
                                         v.row_range(0, end));
    EXPECT_TRUE(rig_.get(alone.acc).bitwise_equal(rig_.get(all.acc.row_range(i, i + 1)))) << i;
    EXPECT_TRUE(rig_.get(alone.sum).bitwise_equal(rig_.get(all.sum.row_range(i, i + 1)))) << i;
  }
  Case last_head = c;
  last_head.heads = {0};  // of the second kv head alone
  const AttentionState head = partial(last_head, q.col_range(32, 48), k.col_range(16, 32),
                                      v.col_range(16, 32));
  EXPECT_TRUE(rig_.get(head.acc).bitwise_equal(rig_.get(all.acc.col_range(32, 48))));
}

INSTANTIATE_TEST_SUITE_P(Storage, CpuAttentionTest, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

}  // namespace
}  // namespace shardcheck
