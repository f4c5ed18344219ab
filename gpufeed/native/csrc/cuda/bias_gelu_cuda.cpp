// bias_gelu on CUDA: tensors to the launches of bias_gelu.cu, on PyTorch's current stream.

#include "bias_gelu.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "../checks.h"
#include "ops_cuda.h"

namespace gpufeed {
namespace {

// x and bias must be contiguous, and outlive what comes back.
Biased biased(const at::Tensor& x, const at::Tensor* bias, Form form) {
  const int64_t columns = x.size(-1);
  return {type_of(x.scalar_type()),
          form,
          x.const_data_ptr(),
          bias ? bias->const_data_ptr() : nullptr,
          bias && bias->scalar_type() == at::kFloat,
          x.numel() / columns,
          columns};
}

}  // namespace

at::Tensor gelu_cuda(const at::Tensor& x, const at::Tensor* bias, Form form) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor in = x.contiguous(), b = bias ? bias->contiguous() : at::Tensor();
  at::Tensor out = at::empty_like(in, at::MemoryFormat::Contiguous);
  if (in.numel() == 0) return out;
  C10_CUDA_CHECK(bias_gelu_forward(biased(in, bias ? &b : nullptr, form), out.data_ptr(),
                                   at::cuda::getCurrentCUDAStream()));
  return out;
}

std::tuple<at::Tensor, at::Tensor> gelu_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                      const at::Tensor* bias, Form form) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor g = grad.contiguous(), in = x.contiguous(), b = bias ? bias->contiguous() : at::Tensor();
  const auto dbias_type = bias ? bias->scalar_type() : x.scalar_type();
  at::Tensor dx = at::empty_like(in, at::MemoryFormat::Contiguous);
  at::Tensor dbias = at::empty({in.size(-1)}, in.options().dtype(dbias_type));
  if (in.numel() == 0) return {dx, dbias.zero_()};
  const Biased work = biased(in, bias ? &b : nullptr, form);
  const at::Tensor partials =
      at::empty({bias_gelu_partials(work), in.size(-1)}, in.options().dtype(at::kFloat));
  C10_CUDA_CHECK(bias_gelu_backward(work, g.const_data_ptr(), dx.data_ptr(), partials.data_ptr<float>(),
                                    dbias.data_ptr(), dbias_type == at::kFloat,
                                    at::cuda::getCurrentCUDAStream()));
  return {dx, dbias};
}

namespace {

at::Tensor forward(const at::Tensor& x, const at::Tensor& bias, std::string_view approximate) {
  check_bias_gelu(x, bias);
  return gelu_cuda(x, &bias, form_of(approximate));
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad, const at::Tensor& x,
                                            const std::optional<at::Tensor>& bias, std::string_view approximate) {
  check_bias_gelu_backward(grad, x, bias);
  return gelu_backward_cuda(grad, x, bias ? &*bias : nullptr, form_of(approximate));
}

}  // namespace

TORCH_LIBRARY_IMPL(gpufeed, CUDA, m) {
  m.impl("bias_gelu", &forward);
  m.impl("bias_gelu_backward", &backward);
}

}  // namespace gpufeed
