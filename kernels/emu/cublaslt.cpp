// SPDX-License-Identifier: Apache-2.0
// What cublasLt accepts, which algorithm it proposes, and the product as a task.
#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "kernels/emu/cublaslt_api.hpp"
#include "kernels/emu/cublaslt_product.hpp"
#include "kernels/emu/runtime.hpp"

namespace shardcheck::emu {

struct cublasLtContext {};

namespace {

constexpr std::size_t kVersion = 130000;
constexpr std::int32_t kAlgorithm = 1;
constexpr std::uint16_t kWidestLoad = 16;  // bytes; no algorithm needs more alignment
constexpr std::uintptr_t kWorkspaceAlignment = 256;
// The product needs none. It asks for some where it may, so that callers are seen to provide it for each stream.
constexpr std::uint32_t kWorkspaceBytes = 1024;

struct Operands {
  const cublasLtMatrixLayoutOpaque_t *a, *b, *c, *d;
};

bool is_one_of(std::int32_t value, std::initializer_list<std::int32_t> known) {
  return std::find(known.begin(), known.end(), value) != known.end();
}

/// Do the types go together? A bias has D's type.
bool types_fit(const cublasLtMatmulDescOpaque_t& desc, const Operands& of) {
  if (of.a->type != of.b->type || of.c->type != of.d->type) return false;
  if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS && desc.bias_type != -1 &&
      static_cast<std::uint32_t>(desc.bias_type) != of.d->type) {
    return false;
  }
  const auto in = static_cast<std::int32_t>(of.a->type), out = static_cast<std::int32_t>(of.d->type);
  if (is_one_of(desc.compute_type, {CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_64F_PEDANTIC})) {
    return desc.scale_type == CUDA_R_64F && in == CUDA_R_64F && out == CUDA_R_64F;
  }
  return is_one_of(desc.compute_type, {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC}) &&
         desc.scale_type == CUDA_R_32F && is_one_of(in, {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F}) &&
         (out == CUDA_R_32F || out == in);
}

bool transposed(std::int32_t operation) { return operation != CUBLAS_OP_N; }  // of real numbers

cublasStatus_t check_layout(const cublasLtMatrixLayoutOpaque_t& layout) {
  if (layout.order != CUBLASLT_ORDER_COL || layout.batch_count != 1)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (std::max(layout.rows, layout.cols) > std::numeric_limits<std::int32_t>::max())
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool possible = layout.rows > 0 && layout.cols > 0 &&
                        layout.ld >= static_cast<std::int64_t>(layout.rows);
  return possible ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/// Is this a product that can be computed?
cublasStatus_t check_problem(const cublasLtMatmulDescOpaque_t& desc, const Operands& of) {
  for (const auto* const layout : {of.a, of.b, of.c, of.d}) {
    if (const cublasStatus_t status = check_layout(*layout); status != CUBLAS_STATUS_SUCCESS)
      return status;
  }
  for (const std::int32_t operation : {desc.transa, desc.transb, desc.transc}) {
    if (!is_one_of(operation, {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C}))
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (desc.transc != CUBLAS_OP_N || desc.pointer_mode != CUBLASLT_POINTER_MODE_HOST ||
      !is_one_of(static_cast<std::int32_t>(desc.epilogue),
                 {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS}) ||
      !types_fit(desc, of)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool ta = transposed(desc.transa), tb = transposed(desc.transb);
  const std::uint64_t m = ta ? of.a->cols : of.a->rows, k = ta ? of.a->rows : of.a->cols;
  const std::uint64_t n = tb ? of.b->rows : of.b->cols, k_of_b = tb ? of.b->cols : of.b->rows;
  const auto is_result = [m, n](const auto& layout) { return layout.rows == m && layout.cols == n; };
  return k == k_of_b && is_result(*of.c) && is_result(*of.d) ? CUBLAS_STATUS_SUCCESS
                                                             : CUBLAS_STATUS_INVALID_VALUE;
}

std::uint16_t widest_load(std::uintptr_t alignment) {
  if (alignment == 0) return kWidestLoad;
  return static_cast<std::uint16_t>(
      std::min<std::uintptr_t>(kWidestLoad, std::uintptr_t{1} << std::countr_zero(alignment)));
}

/// What the heuristic proposes.
cublasLtMatmulAlgo_t propose(const cublasLtMatmulDescOpaque_t& desc,
                             const cublasLtMatmulPreferenceOpaque_t& preference) {
  cublasLtMatmulAlgo_t algo;
  algo.id = kAlgorithm;
  algo.alignment_a = widest_load(preference.alignment_a);
  algo.alignment_b = widest_load(preference.alignment_b);
  algo.alignment_c = widest_load(preference.alignment_c);
  algo.alignment_d = widest_load(preference.alignment_d);
  // The descriptor's bias is not read here, but where it lies counts.
  algo.alignment_bias = widest_load(reinterpret_cast<std::uintptr_t>(desc.bias));
  if (preference.max_workspace_bytes >= kWorkspaceBytes) algo.workspace_bytes = kWorkspaceBytes;
  return algo;
}

bool can_run(const cublasLtMatmulAlgo_t& algo) {
  return algo.id == kAlgorithm && algo.splitk_num <= 1 &&
         algo.reduction_scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

bool aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

cudaDataType_t type_of(const cublasLtMatrixLayoutOpaque_t& layout) {
  return static_cast<cudaDataType_t>(layout.type);
}

ColumnMajor matrix(const void* data, const cublasLtMatrixLayoutOpaque_t& layout) {
  return {data, type_of(layout), layout.ld};
}

Access access(const void* data, const cublasLtMatrixLayoutOpaque_t& layout, Use use) {
  const auto bytes = static_cast<std::uint64_t>(element_bytes(type_of(layout)));
  return access_to_rows(data, layout.rows * bytes, layout.cols,
                        static_cast<std::uint64_t>(layout.ld) * bytes, use);
}

double scalar(const void* value, std::int32_t type) {
  if (type == CUDA_R_64F) return *static_cast<const double*>(value);
  return *static_cast<const float*>(value);
}

bool same_layout(const cublasLtMatrixLayoutOpaque_t& c, const cublasLtMatrixLayoutOpaque_t& d) {
  return c.ld == d.ld && c.type == d.type;
}

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "<unknown>";
}

const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
std::size_t cublasLtGetVersion() { return kVersion; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (desc == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr ||
      preference == nullptr || requested <= 0 || results == nullptr || returned == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *returned = 0;
  if (const cublasStatus_t status = check_problem(*desc, {a, b, c, d}); status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (preference->search_mode != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = {};
  results[0].algo = propose(*desc, *preference);
  results[0].workspaceSize = results[0].algo.workspace_bytes;
  results[0].wavesCount = 1;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (desc == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr ||
      algo == nullptr || result == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (const cublasStatus_t status = check_problem(*desc, {a, b, c, d}); status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (!can_run(*algo)) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = algo->workspace_bytes;
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  for (const void* const needed :
       {static_cast<const void*>(desc), alpha, a, static_cast<const void*>(a_layout), b,
        static_cast<const void*>(b_layout), beta, c, static_cast<const void*>(c_layout),
        static_cast<const void*>(d), static_cast<const void*>(d_layout)}) {
    if (needed == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  }
  Runtime& runtime = Runtime::instance();
  if (!runtime.knows(stream)) return CUBLAS_STATUS_INVALID_VALUE;
  const Operands of{a_layout, b_layout, c_layout, d_layout};
  if (const cublasStatus_t status = check_problem(*desc, of); status != CUBLAS_STATUS_SUCCESS)
    return status;

  // Without an algorithm the library asks its heuristic, with the preferences that it has by default.
  const cublasLtMatmulAlgo_t chosen = algo != nullptr ? *algo : propose(*desc, {});
  if (!can_run(chosen))
    return chosen.id == kAlgorithm ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes < chosen.workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  if (chosen.workspace_bytes > 0 && (workspace == nullptr || !aligned(workspace, kWorkspaceAlignment))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!aligned(a, chosen.alignment_a) || !aligned(b, chosen.alignment_b) ||
      !aligned(c, chosen.alignment_c) || !aligned(d, chosen.alignment_d)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (c == d && !same_layout(*c_layout, *d_layout)) return CUBLAS_STATUS_INVALID_VALUE;

  Product product{
      .m = static_cast<std::int64_t>(d_layout->rows),
      .n = static_cast<std::int64_t>(d_layout->cols),
      .k = static_cast<std::int64_t>(transposed(desc->transa) ? a_layout->rows : a_layout->cols),
      .transpose_a = transposed(desc->transa),
      .transpose_b = transposed(desc->transb),
      .alpha = scalar(alpha, desc->scale_type),
      .beta = scalar(beta, desc->scale_type),
      .a = matrix(a, *a_layout),
      .b = matrix(b, *b_layout),
      .c = matrix(c, *c_layout),
      .d = matrix(d, *d_layout)};
  std::vector<Access> accesses{access(a, *a_layout, Use::reads), access(b, *b_layout, Use::reads),
                               access(d, *d_layout, Use::writes)};
  if (product.beta != 0) accesses.push_back(access(c, *c_layout, Use::reads));
  if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS) {
    if (desc->bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (!aligned(desc->bias, chosen.alignment_bias)) return CUBLAS_STATUS_NOT_SUPPORTED;
    product.bias = desc->bias;
    const std::int64_t bytes = product.m * element_bytes(product.d.type);
    accesses.push_back(access_to(desc->bias, static_cast<std::uint64_t>(bytes), Use::reads));
  }
  if (chosen.workspace_bytes > 0)
    accesses.push_back(access_to(workspace, chosen.workspace_bytes, Use::writes));
  runtime.enqueue(stream, "cublasLtMatmul", accesses,
                  [product, workspace, used = chosen.workspace_bytes](std::uint64_t) {
                    if (used > 0) std::memset(workspace, 0xff, used);
                    compute(product);
                  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace shardcheck::emu
