// Checks of the ops' arguments, shared by the CPU and CUDA. Every error says what was found, what is expected and what
// to do.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "form.h"

namespace gpufeed {

// A tensor (..., columns) as rows of its last dimension; rows is 0 where it has no elements.
struct Rows {
  int64_t rows;
  int64_t columns;
};

// Such as "[2, 3]". Messages consist of strings only: an extension that wrote a number into a stream crashed on one
// node (segmentation fault with torch 2.11 for CUDA 13 on Ubuntu 24.04), while strings worked.
inline std::string text_of(at::IntArrayRef sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  }
  return text + "]";
}

inline Form form_of(std::string_view approximate) {
  TORCH_CHECK_VALUE(approximate == "none" || approximate == "tanh", "found: approximate '", approximate,
                    "'; expected: 'none' (the erf form) or 'tanh'; what to do: pass one of the two");
  return approximate == "tanh" ? Form::tanh : Form::erf;
}

inline Rows rows_of(const at::Tensor& x, const char* name) {
  TORCH_CHECK_VALUE(x.dim() > 0, "found: ", name, " without dimensions; expected: ", name,
                    " of shape (..., columns); what to do: pass x.unsqueeze(0)");
  int64_t columns = x.size(-1);
  return {columns == 0 ? 0 : x.numel() / columns, columns};
}

inline void check_type(const at::Tensor& x, const char* name) {
  auto type = x.scalar_type();
  bool narrow = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  TORCH_CHECK_TYPE(narrow || (type == at::kDouble && x.is_cpu()), "found: ", name, " of ", type, " on ", x.device(),
                   "; expected: float32, float16 or bfloat16, and on the CPU float64; what to do: convert it");
}

inline void check_device(const at::Tensor& other, const char* name, const at::Tensor& x) {
  TORCH_CHECK_VALUE(other.device() == x.device(), "found: ", name, " on ", other.device(), " and x on ", x.device(),
                    "; expected: both on one device; what to do: move one of them");
}

inline void check_same_type(const at::Tensor& other, const char* name, const at::Tensor& x) {
  TORCH_CHECK_TYPE(other.scalar_type() == x.scalar_type(), "found: ", name, " of ", other.scalar_type(), " and x of ",
                   x.scalar_type(), "; expected: the same type; what to do: convert one of them");
}

// A bias with one value per column, of x's type or (float32_too) of float32.
inline void check_bias(const at::Tensor& bias, const at::Tensor& x, int64_t columns, bool float32_too) {
  TORCH_CHECK_VALUE(bias.dim() == 1 && bias.size(0) == columns, "found: bias of shape ", text_of(bias.sizes()),
                    "; expected: (", std::to_string(columns),
                    "), one value a column; what to do: pass a bias of that length");
  check_device(bias, "bias", x);
  bool fits = bias.scalar_type() == x.scalar_type() || (float32_too && bias.scalar_type() == at::kFloat);
  TORCH_CHECK_TYPE(fits, "found: bias of ", bias.scalar_type(), " and x of ", x.scalar_type(), "; expected: x's type",
                   float32_too ? " or float32" : "", "; what to do: convert the bias");
}

inline Rows check_bias_gelu(const at::Tensor& x, const at::Tensor& bias) {
  Rows shape = rows_of(x, "x");
  check_type(x, "x");
  check_bias(bias, x, shape.columns, /*float32_too=*/true);
  return shape;
}

inline Rows check_bias_gelu_backward(const at::Tensor& grad, const at::Tensor& x,
                                     const std::optional<at::Tensor>& bias) {
  Rows shape = rows_of(x, "x");
  check_type(x, "x");
  TORCH_CHECK_VALUE(grad.sizes() == x.sizes(), "found: grad of shape ", text_of(grad.sizes()), " and x of ",
                    text_of(x.sizes()), "; expected: the same shape; what to do: pass the gradient of the op's output");
  check_device(grad, "grad", x);
  check_same_type(grad, "grad", x);
  if (bias.has_value()) {
    check_bias(*bias, x, shape.columns, /*float32_too=*/true);
  }
  return shape;
}

// weight (rows, columns) of x's type and device
inline void check_weight(const at::Tensor& weight, const at::Tensor& x) {
  TORCH_CHECK_VALUE(weight.dim() == 2, "found: weight of shape ", text_of(weight.sizes()),
                    "; expected: two dimensions; what to do: pass a linear layer's weight");
  check_device(weight, "weight", x);
  check_same_type(weight, "weight", x);
}

// x (..., K), weight (N, K), bias (N)
inline Rows check_linear_bias_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  Rows shape = rows_of(x, "x");
  check_type(x, "x");
  check_weight(weight, x);
  TORCH_CHECK_VALUE(weight.size(1) == shape.columns, "found: x of shape ", text_of(x.sizes()), " and weight of ",
                    text_of(weight.sizes()),
                    "; expected: (..., K) and (N, K); what to do: pass the layer's own input");
  check_bias(bias, x, weight.size(0), /*float32_too=*/false);
  return shape;
}

inline Rows check_column_sum(const at::Tensor& x) {
  Rows shape = rows_of(x, "x");
  check_type(x, "x");
  return shape;
}

}  // namespace gpufeed
