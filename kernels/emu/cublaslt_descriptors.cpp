// SPDX-License-Identifier: Apache-2.0
// Descriptors of cublasLt and their attributes.
#include <cstring>
#include <new>

#include "kernels/emu/cublaslt_api.hpp"

namespace shardcheck::emu {
namespace {

/// Where an attribute lies; null for one that isn't modelled.
struct Field {
  void* data = nullptr;
  std::size_t bytes = 0;
};

template <typename T>
Field field(T& member) {
  return {&member, sizeof(T)};
}

Field field_of(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return field(desc.compute_type);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return field(desc.scale_type);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return field(desc.pointer_mode);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return field(desc.transa);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return field(desc.transb);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return field(desc.transc);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return field(desc.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return field(desc.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return field(desc.bias_type);
  }
  return {};
}

Field field_of(cublasLtMatrixLayoutOpaque_t& layout, cublasLtMatrixLayoutAttribute_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return field(layout.type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return field(layout.order);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return field(layout.rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return field(layout.cols);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return field(layout.ld);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return field(layout.batch_count);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return field(layout.batch_offset);
  }
  return {};
}

Field field_of(cublasLtMatmulPreferenceOpaque_t& preference,
               cublasLtMatmulPreferenceAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return field(preference.search_mode);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return field(preference.max_workspace_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return field(preference.reduction_scheme_mask);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return field(preference.alignment_a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return field(preference.alignment_b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return field(preference.alignment_c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return field(preference.alignment_d);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
      return field(preference.max_waves_count);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      return field(preference.impl_mask);
  }
  return {};
}

Field field_of(cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
      return field(algo.id);
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      return field(algo.tile_id);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return field(algo.splitk_num);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      return field(algo.reduction_scheme);
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
      return field(algo.cta_swizzling);
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return field(algo.custom_option);
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      return field(algo.stages_id);
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
      return field(algo.inner_shape_id);
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
      return field(algo.cluster_shape_id);
  }
  return {};
}

template <typename Object, typename Attribute>
cublasStatus_t set(Object* object, Attribute attribute, const void* value, std::size_t bytes) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const Field known = field_of(*object, attribute);
  if (known.data == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (value == nullptr || bytes != known.bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(known.data, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Object, typename Attribute>
cublasStatus_t get(const Object* object, Attribute attribute, void* value, std::size_t bytes,
                   std::size_t* written) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Object copy = *object;
  const Field known = field_of(copy, attribute);
  if (known.data == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (bytes == 0) {
    if (written == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  } else {
    if (value == nullptr || bytes != known.bytes) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(value, known.data, bytes);
  }
  if (written != nullptr) *written = known.bytes;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Object>
cublasStatus_t create(Object** object, const Object& value) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *object = new (std::nothrow) Object(value);
  return *object == nullptr ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_SUCCESS;
}

template <typename Object>
cublasStatus_t destroy(Object* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Object>
cublasStatus_t initialize(Object* object, const Object& value) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *object = value;
  return CUBLAS_STATUS_SUCCESS;
}

cublasLtMatmulDescOpaque_t desc_of(cublasComputeType_t compute, cudaDataType_t scale) {
  cublasLtMatmulDescOpaque_t desc;
  desc.compute_type = compute;
  desc.scale_type = scale;
  return desc;
}

cublasLtMatrixLayoutOpaque_t layout_of(cudaDataType_t type, std::uint64_t rows, std::uint64_t cols,
                                       std::int64_t ld) {
  cublasLtMatrixLayoutOpaque_t layout;
  layout.type = static_cast<std::uint32_t>(type);
  layout.rows = rows;
  layout.cols = cols;
  layout.ld = ld;
  return layout;
}

}  // namespace

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t desc, cublasComputeType_t compute,
                                      cudaDataType_t scale) {
  return initialize(desc, desc_of(compute, scale));
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(desc, desc_of(compute, scale));
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  return set(desc, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, void* value,
                                              std::size_t bytes, std::size_t* written) {
  return get(desc, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                        std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  return initialize(layout, layout_of(type, rows, cols, ld));
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  return create(layout, layout_of(type, rows, cols, ld));
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  return set(layout, attribute, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                void* value, std::size_t bytes, std::size_t* written) {
  return get(layout, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  return initialize(preference, {});
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, {});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  return set(preference, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    void* value, std::size_t bytes,
                                                    std::size_t* written) {
  return get(preference, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (attribute == CUBLASLT_ALGO_CONFIG_ID) return CUBLAS_STATUS_INVALID_VALUE;  // read only
  return set(algo, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes,
                                                    std::size_t* written) {
  return get(algo, attribute, value, bytes, written);
}

}  // namespace shardcheck::emu
