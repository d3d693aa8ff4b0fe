// SPDX-License-Identifier: Apache-2.0
// The twin of cublasLtMatmul against a product written element by element, and what it refuses.
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "tests/emu/cublaslt_rig.hpp"

namespace shardcheck::emu {
namespace {

using ::testing::HasSubstr;

TEST(CublasLt, IsTheProductElementByElement) {
  const std::int64_t shapes[][3] = {{1, 1, 1},   {3, 5, 7},    {64, 2, 33},
                                    {65, 3, 16}, {130, 1, 70}, {2, 9, 1}};
  for (const Types& types : kTypes) {
    for (const auto& [m, n, k] : shapes) {
      for (int variant = 0; variant < 8; ++variant) {
        const bool with_bias = variant >= 4;
        Call call(types, variant % 2 == 1, variant / 2 % 2 == 1, m, n, k, variant % 3);
        if (with_bias) call.add_bias();
        if (variant % 3 == 2) {
          call.alpha = -0.75;
          call.beta = 1.5;
        }
        cublasLtMatmulHeuristicResult_t found;
        ASSERT_EQ(call.choose(found), CUBLAS_STATUS_SUCCESS);
        ASSERT_EQ(call.run(&found.algo), CUBLAS_STATUS_SUCCESS);
        call.expect_product(with_bias);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(CublasLt, WithoutBetaNothingIsReadFromC) {
  Call call(kTypes[1], true, false, 4, 4, 4, 0);
  for (std::int64_t i = 0; i < 16; ++i) put(call.c.host, CUDA_R_32F, i, std::nan(""));
  call.c.upload(call.stream);
  ASSERT_EQ(call.run(), CUBLAS_STATUS_SUCCESS);
  call.expect_product(false);
}

TEST(CublasLt, RunsInTheStreamsTime) {
  Call call(kTypes[1], true, false, 4, 4, 4, 0);
  ASSERT_EQ(call.run(), CUBLAS_STATUS_SUCCESS);
  std::mt19937 random{99};
  Matrix other(call.stream, CUDA_R_32F, 4, 4, 0, random);
  call.a.host = other.host;
  call.a.upload(call.stream);  // after the product
  call.result = call.d.device.values(call.stream);
  const std::vector<std::byte> first = call.result;
  ASSERT_EQ(call.run(), CUBLAS_STATUS_SUCCESS);
  call.expect_product(false);
  EXPECT_NE(first, call.result);
}

TEST(CublasLt, OperandsAreWatched) {
  Call call(kTypes[2], true, false, 8, 8, 8, 0);
  call.add_bias();
  const TestStream other;
  ASSERT_EQ(call.run(), CUBLAS_STATUS_SUCCESS);
  for (Matrix* const operand : {&call.a, &call.b, &call.d, &call.bias}) {
    EXPECT_THAT(
        device_error([&] { static_cast<void>(cudaMemsetAsync(operand->data(), 0, 2, other)); }),
        HasSubstr("in cublasLtMatmul: no event lies between them"));
  }
  EXPECT_THAT(device_error([&] { static_cast<void>(call.run(nullptr, nullptr, 0, other)); }),
              HasSubstr("cublasLtMatmul: stream"));
  order(call.stream, other);
  EXPECT_EQ(call.run(nullptr, nullptr, 0, other), CUBLAS_STATUS_SUCCESS);
  order(other, call.stream);
}

TEST(CublasLt, AWorkspaceServesOneStreamAtATime) {
  Call one(kTypes[1], true, false, 4, 4, 4, 0), two(kTypes[1], true, false, 4, 4, 4, 0);
  const std::uint64_t most = 1 << 20;
  gpu::check(cublasLtMatmulPreferenceSetAttribute(
                 one.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof(most)),
             "set");
  cublasLtMatmulHeuristicResult_t found;
  ASSERT_EQ(one.choose(found), CUBLAS_STATUS_SUCCESS);
  ASSERT_GT(found.workspaceSize, 0u);
  ASSERT_LE(found.workspaceSize, most);
  const DeviceMatrix<std::byte> workspace(one.stream, 1,
                                          static_cast<std::int64_t>(found.workspaceSize) + 16);
  order(one.stream, two.stream);
  EXPECT_EQ(one.run(&found.algo, workspace.data(), found.workspaceSize - 1),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(one.run(&found.algo, nullptr, found.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(one.run(&found.algo, workspace.data() + 16, found.workspaceSize),
            CUBLAS_STATUS_INVALID_VALUE);
  ASSERT_EQ(one.run(&found.algo, workspace.data(), found.workspaceSize), CUBLAS_STATUS_SUCCESS);
  one.expect_product(false);
  ASSERT_EQ(one.run(&found.algo, workspace.data(), found.workspaceSize), CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(device_error([&] {
                static_cast<void>(two.run(&found.algo, workspace.data(), found.workspaceSize));
              }),
              HasSubstr("no event lies between them"));
}

/// What the heuristic and the call say after a change.
template <typename Change>
cublasStatus_t after(Change&& change, Types types = kTypes[2]) {
  Call call(types, true, false, 8, 8, 8, 0);
  change(call);
  cublasLtMatmulHeuristicResult_t found;
  const cublasStatus_t status = call.choose(found);
  EXPECT_EQ(call.run(), status);
  return status;
}

template <typename T>
void set_layout(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  gpu::check(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)), "set");
}

TEST(CublasLt, RefusesWhatTheLibraryRefuses) {
  EXPECT_EQ(after([](Call&) {}), CUBLAS_STATUS_SUCCESS);
  // Types that don't go together.
  for (const Types types : {Types{CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F},
                            Types{CUDA_R_16F, CUDA_R_16BF, CUBLAS_COMPUTE_32F},
                            Types{CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_32F},
                            Types{CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_64F},
                            Types{CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32},
                            Types{CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F}}) {
    EXPECT_EQ(after([](Call&) {}, types), CUBLAS_STATUS_NOT_SUPPORTED);
  }
  const auto type = [](std::uint32_t value) {
    return [value](Call& call) { set_layout(call.b.layout, CUBLASLT_MATRIX_LAYOUT_TYPE, value); };
  };
  EXPECT_EQ(after(type(CUDA_R_16F)), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(after([](Call& call) {
              set_layout(call.c.layout, CUBLASLT_MATRIX_LAYOUT_TYPE, std::uint32_t{CUDA_R_32F});
            }),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(after([](Call& call) {
              call.add_bias();
              call.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
            }),
            CUBLAS_STATUS_NOT_SUPPORTED);
  // Layouts.
  for (const std::int64_t ld : {0, 7, -8}) {
    EXPECT_EQ(after([&](Call& call) { set_layout(call.a.layout, CUBLASLT_MATRIX_LAYOUT_LD, ld); }),
              CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(after([&](Call& call) { set_layout(call.d.layout, CUBLASLT_MATRIX_LAYOUT_LD, ld); }),
              CUBLAS_STATUS_INVALID_VALUE);
  }
  EXPECT_EQ(after([](Call& call) {
              set_layout(call.a.layout, CUBLASLT_MATRIX_LAYOUT_ROWS, std::uint64_t{4});
            }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(after([](Call& call) {
              set_layout(call.d.layout, CUBLASLT_MATRIX_LAYOUT_COLS, std::uint64_t{0});
            }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(after([](Call& call) {
              set_layout(call.a.layout, CUBLASLT_MATRIX_LAYOUT_ORDER, std::int32_t{1});
            }),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(after([](Call& call) {
              set_layout(call.a.layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{2});
            }),
            CUBLAS_STATUS_NOT_SUPPORTED);
  // Descriptors.
  EXPECT_EQ(after([](Call& call) { call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU); }),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(after([](Call& call) {
              call.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
            }),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(after([](Call& call) { call.set(CUBLASLT_MATMUL_DESC_TRANSC, CUBLAS_OP_T); }),
            CUBLAS_STATUS_NOT_SUPPORTED);
  Call call(kTypes[2], true, false, 8, 8, 8, 0);
  const std::int64_t wrong_size = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(call.desc, CUBLASLT_MATMUL_DESC_TRANSA, &wrong_size,
                                           sizeof(wrong_size)),
            CUBLAS_STATUS_INVALID_VALUE);
  call.add_bias();
  call.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(nullptr));
  EXPECT_EQ(call.run(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST(CublasLt, PointersAreAsAlignedAsTheHeuristicWasTold) {
  Call call(kTypes[2], true, false, 8, 8, 8, 0);
  const auto run_shifted = [&](std::size_t bytes, const cublasLtMatmulAlgo_t* algo) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(call.handle, call.desc, &one, static_cast<std::byte*>(call.a.data()) + bytes,
                          call.a.layout, call.b.data(), call.b.layout, &zero, call.d.data(),
                          call.d.layout, call.d.data(), call.d.layout, algo, nullptr, 0, call.stream);
  };
  set_layout(call.a.layout, CUBLASLT_MATRIX_LAYOUT_COLS, std::uint64_t{7});
  set_layout(call.d.layout, CUBLASLT_MATRIX_LAYOUT_ROWS, std::uint64_t{7});
  set_layout(call.c.layout, CUBLASLT_MATRIX_LAYOUT_ROWS, std::uint64_t{7});
  cublasLtMatmulHeuristicResult_t found;
  ASSERT_EQ(call.choose(found), CUBLAS_STATUS_SUCCESS);  // by default they are on 256 bytes
  EXPECT_EQ(run_shifted(16, &found.algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run_shifted(8, &found.algo), CUBLAS_STATUS_NOT_SUPPORTED);
  const std::uint32_t element = 2;
  gpu::check(
      cublasLtMatmulPreferenceSetAttribute(
          call.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &element, sizeof(element)),
      "set");
  ASSERT_EQ(call.choose(found), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run_shifted(2, &found.algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run_shifted(1, &found.algo), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST(CublasLt, AlgorithmsThatSplitKAreNotThere) {
  Call call(kTypes[1], true, false, 4, 4, 4, 0);
  cublasLtMatmulHeuristicResult_t found, checked;
  ASSERT_EQ(call.choose(found), CUBLAS_STATUS_SUCCESS);
  std::int32_t splits = 0;
  std::size_t written = 0;
  ASSERT_EQ(cublasLtMatmulAlgoConfigGetAttribute(&found.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                 &splits, sizeof(splits), &written),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(splits, 1);
  EXPECT_EQ(written, sizeof(splits));
  splits = 4;
  ASSERT_EQ(cublasLtMatmulAlgoConfigSetAttribute(&found.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                 &splits, sizeof(splits)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(call.run(&found.algo), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cublasLtMatmulAlgoCheck(call.handle, call.desc, call.a.layout, call.b.layout,
                                    call.c.layout, call.d.layout, &found.algo, &checked),
            CUBLAS_STATUS_NOT_SUPPORTED);
  const cublasLtMatmulAlgo_t nothing;
  EXPECT_EQ(call.run(&nothing), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace shardcheck::emu
