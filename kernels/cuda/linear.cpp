// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/linear.hpp"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/check_cublas.hpp"
#include "kernels/cuda/memory.hpp"
#include "kernels/cuda/primitives.hpp"
#include "model/error.hpp"

namespace shardcheck::gpu {
namespace {

// What the fast kernels ask of every base address and leading dimension.
constexpr std::uint32_t kAlignment = 16;
// The same for every problem and device: a smaller one could make cuBLASLt choose another algorithm.
constexpr std::uint64_t kWorkspaceBytes = std::uint64_t{32} << 20;

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    static_cast<void>(destroy(handle));
  }
};
template <typename Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;
using MatmulDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_16F;
  }
}

/// How to compute, best first. 32F for 16-bit operands: tensor cores that accumulate in f32. Pedantic for f32: no tf32 and
/// no emulation by narrower products, whatever the environment says; the plain kind has neither by default.
std::vector<cublasComputeType_t> compute_types(DType in) {
  if (in == DType::f64) return {CUBLAS_COMPUTE_64F_PEDANTIC, CUBLAS_COMPUTE_64F};
  if (in == DType::f32) return {CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_32F};
  return {CUBLAS_COMPUTE_32F};
}

/// Columns of a row that is padded to whole alignments.
std::int64_t padded(std::int64_t cols, DType dtype) {
  const std::int64_t grain = kAlignment / static_cast<std::int64_t>(element_size(dtype));
  return (cols + grain - 1) / grain * grain;
}

bool aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(address(tensor)) % kAlignment == 0;
}

/// Lies as the algorithms are chosen for.
bool canonical(const Tensor& tensor) {
  return aligned(tensor) && (tensor.col_stride == 1 || tensor.cols == 1) &&
         (tensor.rows == 1 || tensor.row_stride == padded(tensor.cols, tensor.dtype));
}

Tensor make_canonical(Device& device, Stream& stream, DType dtype, std::int64_t rows,
                      std::int64_t cols) {
  return device.allocate(stream, dtype, rows, padded(cols, dtype)).col_range(0, cols);
}

Tensor to_canonical(Device& device, Stream& stream, const Tensor& tensor) {
  if (canonical(tensor)) return tensor;
  const Tensor moved = make_canonical(device, stream, tensor.dtype, tensor.rows, tensor.cols);
  copy(native(stream), tensor, moved);
  return moved;
}

/// A row-major matrix [rows, cols] is cuBLASLt's column-major [cols, rows].
Layout layout(DType dtype, std::int64_t rows, std::int64_t cols) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, cuda_type(dtype), static_cast<std::uint64_t>(cols),
                                   static_cast<std::uint64_t>(rows), padded(cols, dtype)),
        "linear");
  return Layout(made);
}

/// What cuBLASLt computes: D = A^T B in its column-major view, A the weight [K, N], B the input [K, M], D [N, M]; a bias
/// has one value per row of D, which is one per output feature.
struct Operation {
  MatmulDesc desc;
  Layout a, b, d;

  Operation(std::int64_t m, std::int64_t n, std::int64_t k, DType in, DType out,
            cublasComputeType_t compute, const void* bias)
      : a(layout(in, n, k)), b(layout(in, m, k)), d(layout(out, m, n)) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, compute, cuda_type(accumulate_dtype(in))), "linear");
    desc.reset(made);
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    if (bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(in));
    }
  }

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)), "linear");
  }
};

Preference preferences() {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "linear");
  Preference preference(made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)), "linear");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, kAlignment);
  }
  return preference;
}

std::string describe(const Tensor& x, const Tensor& weight, const Tensor& out) {
  return fmt::format("linear: x {} [{}, {}], weight [{}, {}], out {} [{}, {}]", name(x.dtype),
                     x.rows, x.cols, weight.rows, weight.cols, name(out.dtype), out.rows, out.cols);
}

}  // namespace

Linear::Linear() { check(cublasLtCreate(&handle_), "cublasLtCreate"); }

Linear::~Linear() { static_cast<void>(cublasLtDestroy(handle_)); }

Linear::Choice Linear::choose(const Problem& problem) {
  const std::lock_guard lock(mutex_);
  const auto [place, added] = choices_.try_emplace(problem);
  if (!added) return place->second;
  // A bias is chosen for by its alignment alone; nothing reads it here.
  const void* const bias = problem.bias ? reinterpret_cast<const void*>(std::uintptr_t{kAlignment})
                                        : nullptr;
  const Preference preference = preferences();
  Choice& choice = place->second;
  for (const cublasComputeType_t compute : compute_types(problem.in)) {
    const Operation operation(problem.m, problem.n, problem.k, problem.in, problem.out, compute, bias);
    std::array<cublasLtMatmulHeuristicResult_t, 8> results = {};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, operation.desc.get(), operation.a.get(), operation.b.get(), operation.d.get(),
        operation.d.get(), preference.get(), static_cast<int>(results.size()), results.data(), &found);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
      if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) continue;
      choice = {true, compute, result.algo, result.workspaceSize};
      return choice;
    }
  }
  return choice;
}

void Linear::multiply(Device& device, Stream& stream, const Tensor& x, const Tensor& weight,
                      const Tensor* bias, const Tensor& out) {
  const Problem problem{x.rows, weight.rows, x.cols, x.dtype, out.dtype, bias != nullptr};
  const Choice choice = choose(problem);
  if (!choice.possible) {
    throw DeviceError(describe(x, weight, out) +
                      ": cuBLASLt has no algorithm for this on this device");
  }
  const Tensor a = to_canonical(device, stream, weight), b = to_canonical(device, stream, x);
  const Tensor per_feature = bias == nullptr ? Tensor{} : to_canonical(device, stream, *bias);
  const bool direct = canonical(out);
  const Tensor d = direct ? out : make_canonical(device, stream, out.dtype, out.rows, out.cols);
  const auto workspace_bytes = static_cast<std::int64_t>(choice.workspace_bytes);
  const Tensor workspace = device.allocate(stream, DType::u64, 1, (workspace_bytes + 7) / 8);
  const Operation operation(problem.m, problem.n, problem.k, problem.in, problem.out,
                            choice.compute, bias == nullptr ? nullptr : address(per_feature));
  const float one = 1, zero = 0;
  const double one_f64 = 1, zero_f64 = 0;
  const bool wide = x.dtype == DType::f64;
  const cublasStatus_t status = cublasLtMatmul(
      handle_, operation.desc.get(), wide ? static_cast<const void*>(&one_f64) : &one, address(a),
      operation.a.get(), address(b), operation.b.get(),
      wide ? static_cast<const void*>(&zero_f64) : &zero, address(d), operation.d.get(), address(d),
      operation.d.get(), &choice.algorithm, address(workspace), choice.workspace_bytes,
      native(stream));
  if (status != CUBLAS_STATUS_SUCCESS) check(status, describe(x, weight, out));
  if (!direct) copy(native(stream), d, out);
}

/// out = sum + bias of every row, the sum being in the accumulate dtype.
void Linear::add_bias(Device& device, Stream& stream, const Tensor& sum, const Tensor& bias,
                      const Tensor& out) {
  const Tensor wide = device.allocate(stream, sum.dtype, 1, bias.cols);
  cast(native(stream), bias, wide);
  if (out.dtype == sum.dtype) return gpu::bias(native(stream), sum, wide, out);
  const Tensor total = device.allocate(stream, sum.dtype, sum.rows, sum.cols);
  gpu::bias(native(stream), sum, wide, total);
  cast(native(stream), total, out);
}

void Linear::run(Device& device, Stream& stream, const Tensor& x, const Tensor& weight,
                 const Tensor* bias, const Tensor& out) {
  if (x.cols > 0 && bias == nullptr) return multiply(device, stream, x, weight, nullptr, out);
  // The library adds a bias of the output's dtype.
  if (x.cols > 0 && out.dtype == x.dtype &&
      choose({x.rows, weight.rows, x.cols, x.dtype, out.dtype, true}).possible) {
    return multiply(device, stream, x, weight, bias, out);
  }
  const Tensor sum = make_canonical(device, stream, accumulate_dtype(x.dtype), out.rows, out.cols);
  if (x.cols > 0) {
    multiply(device, stream, x, weight, nullptr, sum);
  } else {
    Tensor whole = sum;
    whole.cols = whole.row_stride;
    check(cudaMemsetAsync(address(whole), 0, static_cast<std::size_t>(whole.bytes()), native(stream)),
          "linear");
  }
  if (bias != nullptr) return add_bias(device, stream, sum, *bias, out);
  cast(native(stream), sum, out);
}

}  // namespace shardcheck::gpu
