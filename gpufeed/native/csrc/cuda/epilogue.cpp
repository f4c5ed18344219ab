#include "epilogue.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>

namespace gpufeed {
namespace {

void check(cublasStatus_t status, const char* what) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "gpufeed: cuBLASLt's ", what, " failed: ", cublasGetStatusString(status));
}

template <typename Handle, cublasStatus_t (*destroy)(Handle)>
struct Destroy {
  void operator()(Handle handle) const { destroy(handle); }
};

template <typename Handle, cublasStatus_t (*destroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;

using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return CUDA_R_32F;
    case at::kHalf:
      return CUDA_R_16F;
    default:
      return CUDA_R_16BF;  // the ops take no other type
  }
}

// A tensor as cuBLASLt's column-major matrix: a contiguous (rows, columns) tensor is its transpose.
Layout layout_of(const at::Tensor& tensor) {
  cublasLtMatrixLayout_t layout;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(tensor), tensor.size(1), tensor.size(0), tensor.size(1)),
        "matrix layout");
  return Layout(layout);
}

template <typename Value>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)), "operation");
}

// The largest of cuBLASLt's alignments, up to 256 bytes, that an address has
uint32_t alignment(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  return bits % 256 == 0 ? 256 : static_cast<uint32_t>(bits & (~bits + 1));
}

constexpr cublasLtEpilogue_t EPILOGUE = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;

// result^T (N, rows) = first^T @ second, then the epilogue
struct Product {
  const at::Tensor& first;
  const at::Tensor& second;
  const at::Tensor& result;
  const at::Tensor& bias;
  const at::Tensor& aux;  // written
};

cublasComputeType_t compute_type(const at::Tensor& tensor) {
  const bool tf32 = tensor.scalar_type() == at::kFloat && at::globalContext().allowTF32CuBLAS();
  return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

Operation operation_of(const Product& of) {
  cublasLtMatmulDesc_t made;
  check(cublasLtMatmulDescCreate(&made, compute_type(of.result), CUDA_R_32F), "operation");
  Operation operation(made);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, EPILOGUE);
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, of.bias.data_ptr());
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, of.aux.data_ptr());
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, of.aux.size(1));
  return operation;
}

// All that the choice of an algorithm depends on
using Key = std::tuple<int, int, int, std::array<int64_t, 3>, std::array<uint32_t, 5>, size_t>;

Key key_of(const Product& of, size_t workspace) {
  return {of.result.get_device(),
          int(of.result.scalar_type()),
          int(compute_type(of.result)),
          {of.result.size(0), of.result.size(1), of.second.size(1)},
          {alignment(of.first.data_ptr()), alignment(of.second.data_ptr()), alignment(of.result.data_ptr()),
           alignment(of.bias.data_ptr()), alignment(of.aux.data_ptr())},
          workspace};
}

struct Layouts {
  Layout first, second, result;
};

cublasLtMatmulAlgo_t choose(const Product& of, const Operation& operation, const Layouts& layouts, size_t workspace) {
  cublasLtMatmulPreference_t made;
  check(cublasLtMatmulPreferenceCreate(&made), "preference");
  const Preference preference(made);
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)), "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(of.first.data_ptr()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(of.second.data_ptr()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(of.result.data_ptr()));
  // bias and aux have no preference of their own: they are accessed like the result
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
         std::min({alignment(of.result.data_ptr()), alignment(of.bias.data_ptr()), alignment(of.aux.data_ptr())}));
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      at::cuda::getCurrentCUDABlasLtHandle(), operation.get(), layouts.first.get(), layouts.second.get(),
      layouts.result.get(), layouts.result.get(), preference.get(), 1, &best, &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "search for an algorithm");
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0, "found: no algorithm of cuBLASLt for ",
              std::to_string(of.result.size(0)), " x ", std::to_string(of.result.size(1)), " x ",
              std::to_string(of.second.size(1)), " in ", of.result.scalar_type(),
              " with this epilogue; expected: one; what to do: use bias_gelu instead, or another type");
  return best.algo;
}

// The search takes the host tens of microseconds, so each product is searched once.
cublasLtMatmulAlgo_t chosen(const Product& of, const Operation& operation, const Layouts& layouts, size_t workspace) {
  static std::mutex mutex;
  static std::map<Key, cublasLtMatmulAlgo_t> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const Key key = key_of(of, workspace);
  auto at = known.find(key);
  if (at == known.end()) at = known.emplace(key, choose(of, operation, layouts, workspace)).first;
  return at->second;
}

void run(const Product& of) {
  const Operation operation = operation_of(of);
  const Layouts layouts{layout_of(of.first), layout_of(of.second), layout_of(of.result)};
  const size_t size = at::cuda::getCUDABlasLtWorkspaceSize();
  // from torch's allocator, like any tensor: safe on every stream and during graph capture
  const at::Tensor workspace = at::empty({int64_t(size)}, of.result.options().dtype(at::kByte));
  const cublasLtMatmulAlgo_t algorithm = chosen(of, operation, layouts, size);
  const float one = 1.0f, zero = 0.0f;
  check(cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), operation.get(), &one, of.first.data_ptr(),
                       layouts.first.get(), of.second.data_ptr(), layouts.second.get(), &zero, of.result.data_ptr(),
                       layouts.result.get(), of.result.data_ptr(), layouts.result.get(), &algorithm,
                       workspace.data_ptr(), size, at::cuda::getCurrentCUDAStream()),
        "product");
}

}  // namespace

void matmul_gelu_aux_bias(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
                          const at::Tensor& aux) {
  run({weight, x, out, bias, aux});
}

}  // namespace gpufeed
