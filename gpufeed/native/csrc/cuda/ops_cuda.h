// Shared by the ops on CUDA. The tensors have passed checks.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "../form.h"
#include "type.h"

namespace gpufeed {

// For the types that checks.h accepts on CUDA
inline Type type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Type::float32;
    case at::kHalf:
      return Type::float16;
    default:
      return Type::bfloat16;
  }
}

// gelu(x + bias), in x's type; the bias may be null.
at::Tensor gelu_cuda(const at::Tensor& x, const at::Tensor* bias, Form form);

// (dx, dbias) of gelu_cuda
std::tuple<at::Tensor, at::Tensor> gelu_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                      const at::Tensor* bias, Form form);

}  // namespace gpufeed
