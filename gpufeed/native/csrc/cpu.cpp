// The ops on the CPU: float32 arithmetic for float32, float16 and bfloat16, float64 for float64.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "checks.h"
#include "cpu_gelu.h"

namespace gpufeed {
namespace {

constexpr int64_t GRAIN = 16384;      // elements per thread, at least
constexpr int64_t ROWS_A_CHUNK = 64;  // for the bias gradient, so that its order of summation depends only on the shape

int64_t rows_a_thread(int64_t columns) { return std::max<int64_t>(1, GRAIN / std::max<int64_t>(1, columns)); }

// The bias in the type of the computation, or zeros for z = x. (-0 + 0 is 0, but gelu of both is a zero.)
template <typename T>
at::Tensor wide_bias(const std::optional<at::Tensor>& bias, const at::Tensor& x, int64_t columns) {
  auto type = c10::CppTypeToScalarType<T>::value;
  return bias.has_value() ? bias->to(type).contiguous() : at::zeros({columns}, x.options().dtype(type));
}

template <Form form, typename T>
void forward_rows(const at::Tensor& x, const at::Tensor& bias, at::Tensor& out, Rows shape) {
  using Wide = at::opmath_type<T>;
  const T* from = x.const_data_ptr<T>();
  const Wide* added = bias.const_data_ptr<Wide>();
  T* to = out.mutable_data_ptr<T>();
  at::parallel_for(0, shape.rows, rows_a_thread(shape.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* source = from + row * shape.columns;
      T* target = to + row * shape.columns;
      for (int64_t column = 0; column < shape.columns; ++column) {
        target[column] = static_cast<T>(cpu::gelu<form>(static_cast<Wide>(source[column]) + added[column]));
      }
    }
  });
}

// gelu(x + bias), contiguous
at::Tensor forward(const at::Tensor& x_, const std::optional<at::Tensor>& bias, Form form, Rows shape) {
  at::Tensor x = x_.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "gpufeed::bias_gelu", [&] {
    at::Tensor added = wide_bias<at::opmath_type<scalar_t>>(bias, x, shape.columns);
    if (form == Form::erf) {
      forward_rows<Form::erf, scalar_t>(x, added, out, shape);
    } else {
      forward_rows<Form::tanh, scalar_t>(x, added, out, shape);
    }
  });
  return out;
}

// dx, and column sums of each chunk of ROWS_A_CHUNK rows before rounding: (chunks, columns)
template <Form form, typename T>
void backward_rows(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& bias, at::Tensor& dx,
                   at::Tensor& sums, Rows shape) {
  using Wide = at::opmath_type<T>;
  const T* upper = grad.const_data_ptr<T>();
  const T* from = x.const_data_ptr<T>();
  const Wide* added = bias.const_data_ptr<Wide>();
  T* to = dx.mutable_data_ptr<T>();
  Wide* sum = sums.mutable_data_ptr<Wide>();
  int64_t chunks_a_thread = std::max<int64_t>(1, rows_a_thread(shape.columns) / ROWS_A_CHUNK);
  at::parallel_for(0, sums.size(0), chunks_a_thread, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      Wide* own = sum + chunk * shape.columns;
      int64_t last = std::min(shape.rows, (chunk + 1) * ROWS_A_CHUNK);
      for (int64_t row = chunk * ROWS_A_CHUNK; row < last; ++row) {
        for (int64_t column = 0; column < shape.columns; ++column) {
          int64_t place = row * shape.columns + column;
          Wide z = static_cast<Wide>(from[place]) + added[column];
          Wide slope = static_cast<Wide>(upper[place]) * cpu::derivative<form>(z);
          to[place] = static_cast<T>(slope);
          own[column] += slope;
        }
      }
    }
  });
}

// dx = grad * gelu'(x + bias), contiguous, and dbias, of bias's type or, without one, of x's
std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad_, const at::Tensor& x_,
                                            const std::optional<at::Tensor>& bias, Form form, Rows shape) {
  at::Tensor grad = grad_.contiguous(), x = x_.contiguous();
  at::Tensor dx = at::empty(x.sizes(), x.options()), dbias;
  int64_t chunks = (shape.rows + ROWS_A_CHUNK - 1) / ROWS_A_CHUNK;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "gpufeed::bias_gelu_backward", [&] {
    at::Tensor added = wide_bias<at::opmath_type<scalar_t>>(bias, x, shape.columns);
    at::Tensor sums = at::zeros({chunks, shape.columns}, added.options());
    if (form == Form::erf) {
      backward_rows<Form::erf, scalar_t>(grad, x, added, dx, sums, shape);
    } else {
      backward_rows<Form::tanh, scalar_t>(grad, x, added, dx, sums, shape);
    }
    dbias = at::zeros({shape.columns}, added.options());
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {  // in order, for any number of threads
      dbias.add_(sums.select(0, chunk));
    }
  });
  return {dx, dbias.to(bias.has_value() ? bias->scalar_type() : x.scalar_type())};
}

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, c10::string_view approximate) {
  return forward(x, bias, form_of({approximate.data(), approximate.size()}), check_bias_gelu(x, bias));
}

std::tuple<at::Tensor, at::Tensor> bias_gelu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                      const std::optional<at::Tensor>& bias,
                                                      c10::string_view approximate) {
  Rows shape = check_bias_gelu_backward(grad, x, bias);
  return backward(grad, x, bias, form_of({approximate.data(), approximate.size()}), shape);
}

std::tuple<at::Tensor, at::Tensor> linear_bias_gelu(const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& bias) {
  check_linear_bias_gelu(x, weight, bias);
  at::Tensor z = at::linear(x, weight, bias).contiguous();
  return {forward(z, std::nullopt, Form::tanh, rows_of(z, "z")), z};
}

at::Tensor column_sum(const at::Tensor& x) {
  Rows shape = check_column_sum(x);
  at::ScalarType wide = at::toOpMathType(x.scalar_type());
  return at::sum(x.reshape({shape.rows, shape.columns}), 0, /*keepdim=*/false, wide).to(x.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(gpufeed, CPU, library) {
  library.impl("bias_gelu", bias_gelu);
  library.impl("bias_gelu_backward", bias_gelu_backward);
  library.impl("linear_bias_gelu", linear_bias_gelu);
  library.impl("column_sum", column_sum);
}

}  // namespace gpufeed
