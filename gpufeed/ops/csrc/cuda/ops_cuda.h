// What the ops on CUDA share. The tensors have passed checks.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "../form.h"

namespace gpufeed {

// gelu(x + bias), in x's type; a null bias is none.
at::Tensor gelu_cuda(const at::Tensor& x, const at::Tensor* bias, Form form);

// (dx, dbias) of gelu_cuda
std::tuple<at::Tensor, at::Tensor> gelu_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                      const at::Tensor* bias, Form form);

}  // namespace gpufeed
