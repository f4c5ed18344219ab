// A matrix product with an operation on its result before it is stored: cuBLASLt's epilogues.
// Source: NVIDIA, cuBLAS documentation, "Using the cuBLASLt API", cublasLtEpilogue_t.
#pragma once

#include <ATen/core/Tensor.h>

namespace gpufeed {

// cuBLASLt's requirement: leading dimensions of aux are a multiple of 8 values.
constexpr int64_t AUX_MULTIPLE = 8;

// out = gelu_tanh(aux), aux = x @ weight^T + bias. All of one type (float32, float16, bfloat16), contiguous, on one device.
// x (rows, K), weight (N, K), bias (N), out and aux (rows, N), N a multiple of AUX_MULTIPLE, rows and K above 0.
void matmul_gelu_aux_bias(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
                          const at::Tensor& aux);

}  // namespace gpufeed
