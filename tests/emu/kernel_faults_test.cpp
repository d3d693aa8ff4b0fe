// SPDX-License-Identifier: Apache-2.0
// The mistakes that kernels of tiles are prone to, planted one at a time in a small kernel of that kind and in what the
// real attention kernels are given. Each is caught: by emu while the kernel runs, whatever the order of threads, or by
// the twin's budget.
#include <gmock/gmock.h>

#include <optional>

#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/twin/attention.hpp"
#include "tests/emu/runtime_rig.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck::gpu {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

enum class Fault {
  none,
  no_barrier_before_staging,
  no_barrier_after_staging,
  no_barrier_in_warp,
  barrier_without_some,
  mask_without_some,
  mask_of_absent_lanes,
  half_reduction,
  short_tile,
  long_tile,
  stale_tile,
  unset_tile,
  unmasked_key,
  unmasked_end
};

constexpr int kMeanRows = 4, kMeanKeys = 32, kMeanCols = 32;  // of one block

template <Fault kFault>
__device__ float warp_total(float x, int lane) {
  if constexpr (kFault == Fault::mask_of_absent_lanes) {
    if (lane < kWarp / 2) x += __shfl_xor_sync(kAllLanes, x, 1);
    return x;
  }
  const unsigned lanes = kFault == Fault::mask_without_some ? 0x7fffffffu : kAllLanes;
  for (int offset = kFault == Fault::half_reduction ? kWarp / 4 : kWarp / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(lanes, x, offset);
  }
  return x;
}

/// out(m, :) = sum over keys j <= m of a(m, j) x(j, :) / sum of a(m, j): attention, its weights given. A warp per row.
///                                                                            a [M, N]   x [N, 32]   out [M, 32]
template <Fault kFault>
__global__ void causal_mean(View<const float> a, View<const float> x, View<float> out) {
  SHARED_ARRAY(float, tile, kMeanKeys* kMeanCols);
  SHARED_ARRAY(float, weights, kMeanRows* kMeanKeys);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const std::int64_t row = std::int64_t{blockIdx.x} * kMeanRows + warp;
  if (kFault == Fault::barrier_without_some && row >= out.rows) return;
  float sum = 0, total = 0;
  for (std::int64_t first = 0; first < x.rows; first += kMeanKeys) {
    if (kFault != Fault::no_barrier_before_staging) __syncthreads();
    for (int i = thread; i < kMeanKeys * kMeanCols; i += kMeanRows * kWarp) {
      if (kFault == Fault::stale_tile && first > 0) break;
      const std::int64_t key = first + i / kMeanCols;
      if (key < x.rows) {
        tile[i] = x(key, i % kMeanCols);
      } else if (kFault != Fault::unset_tile) {
        tile[i] = 0.0f;
      }
    }
    if (kFault != Fault::no_barrier_after_staging) __syncthreads();
    const std::int64_t key = first + lane;
    const bool inside = row < out.rows && (key < x.rows || kFault == Fault::unmasked_end);
    const float weight = inside && key <= row + (kFault == Fault::unmasked_key ? 1 : 0) ? a(row, key)
                                                                                        : 0.0f;
    weights[warp * kMeanKeys + lane] = weight;
    if (kFault != Fault::no_barrier_in_warp) __syncwarp();
    sum += warp_total<kFault>(weight, lane);
    constexpr int kKeys = kMeanKeys + (kFault == Fault::long_tile) - (kFault == Fault::short_tile);
    for (int i = 0; i < kKeys; ++i) {
      const float w = weights[warp * kMeanKeys + i], value = tile[i * kMeanCols + lane];
      total += w * value;
    }
    __syncwarp();  // the weights are used up
  }
  if (row < out.rows) out(row, lane) = total / sum;
}

/// Its twin. b = u |y| + sqrt(n) u (the terms' root of squares, once for either sum), n the keys seen.
twin::Answer causal_mean_twin(const Matrix& a, const Matrix& x) {
  const double u = unit_roundoff(DType::f32);
  twin::Answer answer;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t keys = std::min(row + 1, x.rows);
    double sum = 0, sum_squares = 0;
    for (std::int64_t key = 0; key < keys; ++key) {
      sum += a(row, key);
      sum_squares += a(row, key) * a(row, key);
    }
    for (std::int64_t col = 0; col < x.cols; ++col) {
      double y = 0, squares = 0;
      for (std::int64_t key = 0; key < keys; ++key) {
        const double term = a(row, key) * x(key, col) / sum;
        y += term;
        squares += term * term;
      }
      const double roundings = std::sqrt(static_cast<double>(keys)) * u;
      answer.add(y, u * std::abs(y) + roundings * (std::sqrt(squares) +
                                                   std::abs(y) * std::sqrt(sum_squares) / sum));
    }
  }
  return answer;
}

Matrix positive(Matrix matrix) {
  for (double& value : matrix.values) value = std::abs(value) + 0.25;
  matrix.values = round_to(DType::f32, {matrix.rows, matrix.cols}, matrix.values).to_f64();
  return matrix;
}

std::vector<float> floats(const Matrix& matrix) {
  return {matrix.values.begin(), matrix.values.end()};
}

/// The distance of one run from the twin; throws what emu finds.
template <Fault kFault>
twin::Distance run_mean(std::int64_t rows, std::int64_t keys) {
  const Matrix a = positive(random_matrix(DType::f32, rows, keys, 1)),
               x = random_matrix(DType::f32, keys, kMeanCols, 2);
  const emu::TestStream stream;
  const emu::DeviceMatrix<float> on_a(stream, a.rows, a.cols, floats(a)),
      on_x(stream, x.rows, x.cols, floats(x));
  const emu::DeviceMatrix<float> out(stream, rows, kMeanCols);
  launch(causal_mean<kFault>,
         {"causal_mean", stream, dim3(blocks_for(rows, kMeanRows)), dim3(kMeanRows * kWarp)},
         on_a.read(), on_x.read(), out.view());
  const std::vector<float> got = out.values(stream);
  return twin::distance({got.begin(), got.end()}, causal_mean_twin(a, x));
}

constexpr std::int64_t kRows = 42, kKeys = 45;  // two tiles, the last of both kinds partial

template <Fault kFault>
void expect_found_by_emu(const ::testing::Matcher<std::string>& message, std::int64_t keys = kKeys) {
  for (const std::uint64_t seed : emu::kSeeds) {
    const emu::Seed order(seed);
    const std::string error = emu::device_error([&] { run_mean<kFault>(kRows, keys); });
    EXPECT_THAT(error, HasSubstr("causal_mean")) << "seed " << seed;
    EXPECT_THAT(error, message) << "seed " << seed;
  }
}

template <Fault kFault>
void expect_found_by_twin() {
  for (const std::uint64_t seed : emu::kSeeds) {
    const emu::Seed order(seed);
    EXPECT_FALSE(twin::within_limits(run_mean<kFault>(kRows, kKeys), DType::f32, kRows * kMeanCols))
        << "seed " << seed;
  }
}

TEST(KernelFaults, WithoutAFaultNothingIsFound) {
  for (const std::uint64_t seed : emu::kSeeds) {
    const emu::Seed order(seed);
    const twin::Distance d = run_mean<Fault::none>(kRows, kKeys);
    EXPECT_TRUE(twin::within_limits(d, DType::f32, kRows * kMeanCols))
        << d.worst << " " << d.root_mean_square;
    EXPECT_LE(run_mean<Fault::none>(3, 20).worst, 8);
  }
}

TEST(KernelFaults, AMissingBarrier) {
  const auto race = HasSubstr("between the two must be a __syncthreads()");
  expect_found_by_emu<Fault::no_barrier_before_staging>(race);
  expect_found_by_emu<Fault::no_barrier_after_staging>(
      AnyOf(race, HasSubstr("which no thread of this block has written")));
  expect_found_by_emu<Fault::no_barrier_in_warp>(
      AnyOf(HasSubstr("__syncwarp()"), HasSubstr("which no thread of this block has written")));
}

TEST(KernelFaults, ABarrierThatSomeThreadsDoNotReach) {
  expect_found_by_emu<Fault::barrier_without_some>(
      HasSubstr("All threads of a block must come to a barrier"));
}

TEST(KernelFaults, AWrongLaneMask) {
  expect_found_by_emu<Fault::mask_without_some>(HasSubstr("mask 0x7fffffff"));
  expect_found_by_emu<Fault::mask_of_absent_lanes>(HasSubstr("is reached by 16 of 32 lanes"));
  expect_found_by_twin<Fault::half_reduction>();
}

TEST(KernelFaults, ATileThatIsOneOff) {
  expect_found_by_twin<Fault::short_tile>();
  expect_found_by_emu<Fault::long_tile>(HasSubstr("shared array"));
}

TEST(KernelFaults, StaleSharedMemory) {
  expect_found_by_twin<Fault::stale_tile>();
  expect_found_by_emu<Fault::unset_tile>(HasSubstr("which no thread of this block has written"), 20);
}

TEST(KernelFaults, AnUnmaskedKey) {
  expect_found_by_twin<Fault::unmasked_key>();
  expect_found_by_emu<Fault::unmasked_end>(HasSubstr("is outside of a view of"), 40);
}

// ---- the real kernels -----------------------------------------------------------------------------------------------

struct AttentionInputs {
  Matrix q, k, v;
  std::vector<std::int32_t> heads;
  AttentionShape shape;
};

AttentionInputs attention_inputs(DType dtype, std::int64_t queries, std::int64_t keys) {
  constexpr std::int64_t kHeadDim = 16;
  return {random_matrix(dtype, queries, 3 * kHeadDim, 1),
          random_matrix(dtype, keys, 2 * kHeadDim, 2),
          random_matrix(dtype, keys, 2 * kHeadDim, 3),
          {0, 0, 1},
          {.head_dim = kHeadDim, .scale = 0.25, .q_first = keys - queries - 2}};  // the last two keys are nobody's
}

class AttentionFaults : public testing::TestWithParam<DType> {
 protected:
  /// Attention of these inputs, as far as the host passes `k` and `v` rows [from, to) and this shape and head list.
  HostTensor run(const AttentionInputs& in, std::int64_t from, std::int64_t to,
                 const AttentionShape& shape, HeadMap heads) {
    const DType dtype = GetParam(), acc = accumulate_dtype(dtype);
    const auto heads_count = static_cast<std::int64_t>(in.heads.size());
    const AttentionState state{rig_.make(acc, in.q.rows, heads_count),
                               rig_.make(acc, in.q.rows, heads_count),
                               rig_.make(acc, in.q.rows, in.q.cols)};
    rig_.device().attention_partial(rig_.stream(), rig_.put(dtype, in.q),
                                    rig_.put(dtype, in.k).row_range(from, to),
                                    rig_.put(dtype, in.v).row_range(from, to), heads, shape, state);
    const Tensor out = rig_.make(dtype, in.q.rows, in.q.cols);
    rig_.device().attention_finish(rig_.stream(), state, shape.head_dim, out);
    return rig_.get(out);
  }

  void check(std::int64_t queries, std::int64_t keys) {
    const DType dtype = GetParam();
    const AttentionInputs in = attention_inputs(dtype, queries, keys);
    const twin::Answer answer = twin::attention(in.q, in.k, in.v, in.heads, in.shape, dtype,
                                                rig_.arithmetic(Primitive::attention, dtype));
    ASSERT_TRUE(within_budget(run(in, 0, keys, in.shape, in.heads), answer));
    ASSERT_TRUE(within_budget(run(in, 0, keys - 2, in.shape, in.heads), answer));
    AttentionShape shape = in.shape;
    shape.q_first += 1;
    EXPECT_FALSE(within_budget(run(in, 0, keys, shape, in.heads), answer)) << "an unmasked key";
    EXPECT_FALSE(within_budget(run(in, 0, keys - 3, in.shape, in.heads), answer))
        << "a tile that ends one early";
    shape = in.shape;
    shape.k_first = 1;
    EXPECT_FALSE(within_budget(run(in, 1, keys, shape, in.heads), answer))
        << "a tile that begins one late";
    EXPECT_FALSE(within_budget(run(in, 1, keys, in.shape, in.heads), answer))
        << "keys shifted by one";
    shape = in.shape;
    shape.window = in.shape.q_first;
    EXPECT_FALSE(within_budget(run(in, 0, keys, shape, in.heads), answer))
        << "a window that hides keys";
    EXPECT_FALSE(within_budget(run(in, 0, keys, in.shape, std::vector<std::int32_t>{0, 1, 1}), answer))
        << "a neighbour's kv head";
  }

  DeviceRig rig_;
};

TEST_P(AttentionFaults, ExceedTheBudgetForManyQueries) { check(20, 75); }
TEST_P(AttentionFaults, ExceedTheBudgetForFewQueries) { check(3, 75); }

INSTANTIATE_TEST_SUITE_P(Storage, AttentionFaults, testing::ValuesIn(kStorageDTypes),
                         [](const auto& test) { return text(test.param); });

/// attention_tiles on 70 queries and keys, launched with `grid` and rows [0, rows) of the outputs.
twin::Distance run_tiles(std::optional<dim3> grid, std::int64_t rows) {
  constexpr std::int64_t kQueries = 70, kHeadDim = 16;
  const AttentionInputs in = attention_inputs(DType::f32, kQueries, kQueries + 2);
  const HeadGroups groups = grouped(in.heads).front();
  const emu::TestStream stream;
  const emu::DeviceMatrix<float> q(stream, in.q.rows, in.q.cols, floats(in.q)),
      k(stream, in.k.rows, in.k.cols, floats(in.k)), v(stream, in.v.rows, in.v.cols, floats(in.v));
  const emu::DeviceMatrix<float> max(stream, rows, 3), sum(stream, rows, 3),
      acc(stream, rows, 3 * kHeadDim);
  using Tile = PrefillTile<float, 64>;
  launch(attention_tiles<float, 64>,
         {"attention_partial", stream,
          grid.value_or(dim3(blocks_for(kQueries * groups.largest, Tile::kRows), 2)),
          dim3(Tile::kThreads)},
         q.read(), k.read(), v.read(), max.view(), sum.view(), acc.view(),
         Sight{.position = in.shape.q_first, .window = 0, .keys = in.k.rows}, 0.25f,
         static_cast<int>(kHeadDim), groups);
  const std::vector<float> sums = sum.values(stream);
  std::vector<double> got;
  for (const float x : acc.values(stream)) got.push_back(x / sums[got.size() / kHeadDim]);
  return twin::distance(
      got, twin::attention(in.q, in.k, in.v, in.heads, in.shape, DType::f32, Arithmetic{}));
}

TEST(AttentionLaunchFaults, ALaunchThatIsOneTileOff) {
  EXPECT_LE(run_tiles(std::nullopt, 70).worst, 8);
  EXPECT_FALSE(run_tiles(dim3(2, 2), 70).worst <= 8);  // the last tile of rows
  EXPECT_FALSE(run_tiles(dim3(3, 1), 70).worst <= 8);  // the last kv head
  EXPECT_LE(run_tiles(dim3(4, 2), 70).worst, 8);       // a block too many finds nothing to do
  EXPECT_THAT(emu::device_error([] { run_tiles(std::nullopt, 69); }),
              HasSubstr("is outside of a view of 69 x"));
}

}  // namespace
}  // namespace shardcheck::gpu
