// bias + GELU, forward and backward, each in one pass over memory: a thread keeps the bias of its columns (and, backward,
// their sums) in registers.

#include "bias_gelu.h"
#include "gelu_math.h"
#include "rows.cuh"

namespace gpufeed {
namespace {

// Rows in flight per thread, and blocks per multiprocessor, such that the whole grid is resident
constexpr int FORWARD_ROWS = 2, FORWARD_BLOCKS = 4;
constexpr int BACKWARD_ROWS = 2, BACKWARD_BLOCKS = 3;  // two inputs and the sums would spill with 64 registers

template <typename T, Form form>
__device__ __forceinline__ float gelu(float z) {
  return sizeof(T) == 4 ? full_width_gelu<form>(z) : half_width_gelu<form>(z);
}

template <typename T, Form form>
__device__ __forceinline__ float derivative(float z) {
  return sizeof(T) == 4 ? full_width_derivative<form>(z) : half_width_derivative<form>(z);
}

template <typename T, int VEC>
__device__ __forceinline__ void read_bias(float (&to)[VEC], const void* bias, bool wide, int64_t column) {
#pragma unroll
  for (int i = 0; i < VEC; i++) {
    if (bias == nullptr) {
      to[i] = 0.0f;
    } else if (wide) {
      to[i] = static_cast<const float*>(bias)[column + i];
    } else {
      to[i] = to_float(static_cast<const T*>(bias)[column + i]);
    }
  }
}

template <typename T, Form form, int VEC>
__global__ void __launch_bounds__(THREADS, FORWARD_BLOCKS)
    forward_kernel(const T* __restrict__ x, const void* __restrict__ bias, bool wide_bias, T* __restrict__ out,
                   int64_t rows, int64_t columns, int tiles) {
  const Place at = place<VEC>(columns, tiles);
  if (!at.inside) return;
  float b[VEC];
  read_bias<T, VEC>(b, bias, wide_bias, at.column);
  for (int64_t row = at.row; row < rows; row += FORWARD_ROWS * at.step) {
    Pack<T, VEC> in[FORWARD_ROWS];
#pragma unroll
    for (int k = 0; k < FORWARD_ROWS; k++) {
      int64_t here = row + k * at.step;
      if (here < rows) in[k] = read<T, VEC>(x + here * columns + at.column);
    }
#pragma unroll
    for (int k = 0; k < FORWARD_ROWS; k++) {
      int64_t here = row + k * at.step;
      if (here >= rows) break;
      float y[VEC];
#pragma unroll
      for (int i = 0; i < VEC; i++) y[i] = gelu<T, form>(to_float(in[k].value[i]) + b[i]);
      write<T, VEC>(out + here * columns + at.column, rounded<T, VEC>(y));
    }
  }
}

template <typename T, Form form, int VEC>
__global__ void __launch_bounds__(THREADS, BACKWARD_BLOCKS)
    backward_kernel(const T* __restrict__ grad, const T* __restrict__ x, const void* __restrict__ bias,
                    bool wide_bias, T* __restrict__ dx, float* __restrict__ partials, int64_t rows,
                    int64_t columns, int tiles) {
  const Place at = place<VEC>(columns, tiles);
  float sums[VEC] = {};
  if (at.inside) {
    float b[VEC];
    read_bias<T, VEC>(b, bias, wide_bias, at.column);
    for (int64_t row = at.row; row < rows; row += BACKWARD_ROWS * at.step) {
      Pack<T, VEC> in[BACKWARD_ROWS], g[BACKWARD_ROWS];
#pragma unroll
      for (int k = 0; k < BACKWARD_ROWS; k++) {
        int64_t here = row + k * at.step;
        if (here < rows) {
          in[k] = read<T, VEC>(x + here * columns + at.column);
          g[k] = read<T, VEC>(grad + here * columns + at.column);
        }
      }
#pragma unroll
      for (int k = 0; k < BACKWARD_ROWS; k++) {
        int64_t here = row + k * at.step;
        if (here >= rows) break;
        float d[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++) {
          d[i] = to_float(g[k].value[i]) * derivative<T, form>(to_float(in[k].value[i]) + b[i]);
          sums[i] += d[i];
        }
        write<T, VEC>(dx + here * columns + at.column, rounded<T, VEC>(d));
      }
    }
  }
  reduce_block<VEC>(sums, at, partials + (blockIdx.x / tiles) * columns, columns);
}

template <typename T, Form form, int VEC>
cudaError_t launch_forward(const Biased& in, void* out, cudaStream_t stream) {
  const Grid grid = grid_of(in.rows, in.columns, VEC, FORWARD_BLOCKS);
  forward_kernel<T, form, VEC><<<grid.blocks(), grid.block, 0, stream>>>(
      static_cast<const T*>(in.x), in.bias, in.wide_bias, static_cast<T*>(out), in.rows, in.columns, grid.tiles);
  return cudaGetLastError();
}

struct Backward {
  const void* grad;
  void* dx;
  float* partials;
  void* dbias;
  bool wide_dbias;
};

template <typename T, Form form, int VEC>
cudaError_t launch_backward(const Biased& in, const Backward& to, cudaStream_t stream) {
  const Grid grid = grid_of(in.rows, in.columns, VEC, BACKWARD_BLOCKS);
  backward_kernel<T, form, VEC><<<grid.blocks(), grid.block, 0, stream>>>(
      static_cast<const T*>(to.grad), static_cast<const T*>(in.x), in.bias, in.wide_bias, static_cast<T*>(to.dx),
      to.partials, in.rows, in.columns, grid.tiles);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  if (to.wide_dbias) return launch_sum<float>(to.partials, to.dbias, grid.chunks, in.columns, stream);
  return launch_sum<T>(to.partials, to.dbias, grid.chunks, in.columns, stream);
}

// Calls use(T(), std::integral_constant<Form, form>) for the batch's type and form
template <typename Use>
cudaError_t for_kind(const Biased& in, Use use) {
  auto with_form = [&](auto type) {
    return in.form == Form::erf ? use(type, std::integral_constant<Form, Form::erf>())
                                : use(type, std::integral_constant<Form, Form::tanh>());
  };
  switch (in.type) {
    case Type::float32:
      return with_form(float());
    case Type::float16:
      return with_form(__half());
    case Type::bfloat16:
      return with_form(__nv_bfloat16());
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t bias_gelu_forward(const Biased& in, void* out, cudaStream_t stream) {
  return for_kind(in, [&](auto type, auto form) {
    using T = decltype(type);
    switch (vec_of<T>(in.columns, {in.x, out})) {
      case 1:
        return launch_forward<T, form.value, 1>(in, out, stream);
      case 2:
        return launch_forward<T, form.value, 2>(in, out, stream);
      default:
        return launch_forward<T, form.value, 16 / sizeof(T)>(in, out, stream);
    }
  });
}

int64_t bias_gelu_partials(const Biased& in) {
  return most_chunks(in.rows, in.columns, in.type == Type::float32 ? 4 : 8, BACKWARD_BLOCKS);
}

cudaError_t bias_gelu_backward(const Biased& in, const void* grad, void* dx, float* partials, void* dbias,
                               bool wide_dbias, cudaStream_t stream) {
  const Backward to{grad, dx, partials, dbias, wide_dbias};
  return for_kind(in, [&](auto type, auto form) {
    using T = decltype(type);
    switch (vec_of<T>(in.columns, {in.x, grad, dx})) {
      case 1:
        return launch_backward<T, form.value, 1>(in, to, stream);
      case 2:
        return launch_backward<T, form.value, 2>(in, to, stream);
      default:
        return launch_backward<T, form.value, 16 / sizeof(T)>(in, to, stream);
    }
  });
}

}  // namespace gpufeed
