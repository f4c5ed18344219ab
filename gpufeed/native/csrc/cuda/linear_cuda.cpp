// linear_bias_gelu on CUDA: one cuBLASLt product. Rows of a length that cuBLASLt's epilogue does not support (see
// AUX_MULTIPLE) use torch's product and the kernel of bias_gelu.cu.
//
// The derivative uses no epilogue. With DGELU_BGRAD, cuBLASLt 13 runs a separate kernel after the product on sm_90 (65536 x
// 768: 408 us, while bias_gelu's backward takes 74). With DGELU only, the product is as slow as both.

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "../checks.h"
#include "epilogue.h"
#include "ops_cuda.h"

namespace gpufeed {
namespace {

at::Tensor flat(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}).contiguous(); }

std::vector<int64_t> with_last(const at::Tensor& tensor, int64_t last) {
  auto sizes = tensor.sizes().vec();
  sizes.back() = last;
  return sizes;
}

// A copy if the tensor is a misaligned view, since cuBLASLt's epilogues read bias and aux in words of 16 bytes
at::Tensor aligned(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(whole.const_data_ptr()) % 16 == 0 ? whole : whole.clone();
}

bool fits(int64_t rows, int64_t columns, int64_t inner) {
  return columns % AUX_MULTIPLE == 0 && inner % AUX_MULTIPLE == 0 && rows > 0 && columns > 0 && inner > 0;
}

std::tuple<at::Tensor, at::Tensor> linear_bias_gelu(const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& bias) {
  check_linear_bias_gelu(x, weight, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t columns = weight.size(0), inner = weight.size(1);
  const int64_t rows = inner > 0 ? x.numel() / inner : 0;
  if (!fits(rows, columns, inner)) {
    at::Tensor aux = at::linear(x, weight, bias).contiguous();
    return {gelu_cuda(aux, nullptr, Form::tanh), aux};
  }
  at::Tensor out = at::empty(with_last(x, columns), x.options()), aux = at::empty_like(out);
  matmul_gelu_aux_bias(flat(x), weight.contiguous(), aligned(bias), out.view({rows, columns}),
                       aux.view({rows, columns}));
  return {out, aux};
}

}  // namespace

TORCH_LIBRARY_IMPL(gpufeed, CUDA, m) {
  m.impl("linear_bias_gelu", &linear_bias_gelu);
}

}  // namespace gpufeed
