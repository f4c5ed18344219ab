// bias + GELU, forward and backward, each in one pass over memory.
//
// A thread keeps its VEC columns for the whole launch, and so their bias (and, backward, their sums) in registers; it
// walks over the rows, several of them in flight. Blocks that stand side by side cover one stretch of rows.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "bias_gelu.h"
#include "gelu_math.h"

namespace gpufeed {
namespace {

constexpr int THREADS = 256;
// Rows in flight a thread, and blocks a multiprocessor: a grid that is resident at once
constexpr int FORWARD_ROWS = 2, FORWARD_BLOCKS = 4;
constexpr int BACKWARD_ROWS = 2, BACKWARD_BLOCKS = 3;  // two inputs and the sums: with 64 registers they spill

template <typename T, int VEC>
struct alignas(sizeof(T) * VEC) Pack {
  T value[VEC];
};

template <int BYTES>
struct Word;
template <>
struct Word<16> {
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<2> {
  using type = unsigned short;
};

// By a plain load: one that streams past the caches (__ldcs) took 1 to 5 % longer on an H200.
template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> read(const T* from) {
  using W = typename Word<sizeof(T) * VEC>::type;
  union {
    W word;
    Pack<T, VEC> pack;
  } both = {*reinterpret_cast<const W*>(from)};
  return both.pack;
}

template <typename T, int VEC>
__device__ __forceinline__ void write(T* to, const Pack<T, VEC>& pack) {
  *reinterpret_cast<Pack<T, VEC>*>(to) = pack;
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T rounded(float x);
template <>
__device__ __forceinline__ float rounded<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half rounded<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Two at once: one instruction where the device has it
template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> rounded(const float (&from)[VEC]) {
  Pack<T, VEC> to;
#pragma unroll
  for (int i = 0; i < VEC; i++) to.value[i] = rounded<T>(from[i]);
  return to;
}

template <typename T, Form form>
__device__ __forceinline__ float gelu(float z) {
  return sizeof(T) == 4 ? full_width_gelu<form>(z) : half_width_gelu<form>(z);
}

template <typename T, Form form>
__device__ __forceinline__ float derivative(float z) {
  return sizeof(T) == 4 ? full_width_derivative<form>(z) : half_width_derivative<form>(z);
}

// Which columns and rows a thread has. A block is blockDim.x packs wide and blockDim.y rows high.
struct Place {
  int64_t column;  // the first of VEC
  int64_t row;     // the first, then every step-th
  int64_t step;
  bool inside;
};

template <int VEC>
__device__ __forceinline__ Place place(int64_t columns, int tiles) {
  int tile = blockIdx.x % tiles;
  int64_t column = (int64_t(tile) * blockDim.x + threadIdx.x) * VEC;
  int64_t chunk = blockIdx.x / tiles, chunks = gridDim.x / tiles;
  return {column, chunk * blockDim.y + threadIdx.y, chunks * blockDim.y, column < columns};
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

// Sums a block's columns over its rows: sums[i] of each thread to one float a column at `to`.
template <int VEC>
__device__ __forceinline__ void reduce_block(const float (&sums)[VEC], const Place& at, float* to,
                                             int64_t columns) {
  __shared__ float shared[THREADS * VEC];
  const int width = blockDim.x, thread = threadIdx.y * width + threadIdx.x;
#pragma unroll
  for (int i = 0; i < VEC; i++) shared[i * THREADS + thread] = sums[i];  // neighbours in different banks
  __syncthreads();
  if (threadIdx.y != 0 || !at.inside) return;
#pragma unroll
  for (int i = 0; i < VEC; i++) {
    float sum = 0.0f;
    for (int y = 0; y < blockDim.y; y++) sum += shared[i * THREADS + y * width + threadIdx.x];
    to[at.column + i] = sum;
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

constexpr int SUM_COLUMNS = 32, SUM_ROWS = 32;

// dbias = the column sums of the partials, each in the same order in every launch
template <typename B>
__global__ void __launch_bounds__(SUM_COLUMNS * SUM_ROWS)
    sum_kernel(const float* __restrict__ partials, B* __restrict__ dbias, int chunks, int64_t columns) {
  __shared__ float shared[SUM_ROWS][SUM_COLUMNS + 1];
  const int64_t column = int64_t(blockIdx.x) * SUM_COLUMNS + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 4
    for (int row = threadIdx.y; row < chunks; row += SUM_ROWS) sum += partials[row * columns + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  sum = 0.0f;
#pragma unroll
  for (int y = 0; y < SUM_ROWS; y++) sum += shared[y][threadIdx.x];
  dbias[column] = rounded<B>(sum);
}

struct Grid {
  int tiles;   // blocks side by side over the columns
  int chunks;  // blocks over the rows
  dim3 block;

  int blocks() const { return tiles * chunks; }
};

int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// As many blocks as the device holds at once, fewer if the rows do not last.
Grid grid_of(int64_t rows, int64_t columns, int vec, int blocks_per_sm) {
  const int64_t packs = columns / vec;
  int width = 1;
  while (width < 32 && width < packs) width *= 2;
  const int height = THREADS / width;
  const int64_t tiles = (packs + width - 1) / width;
  const int64_t most = std::max<int64_t>(1, int64_t(multiprocessors()) * blocks_per_sm / tiles);
  const int64_t chunks = std::min(most, std::max<int64_t>(1, (rows + height - 1) / height));
  return {int(tiles), int(chunks), dim3(width, height)};
}

// The widest pack that divides a row and all addresses: 16 bytes, else two values, else one
template <typename T>
int vec_of(int64_t columns, std::initializer_list<const void*> addresses) {
  for (int vec : {int(16 / sizeof(T)), 2}) {
    bool fits = columns % vec == 0;
    for (const void* address : addresses) fits &= reinterpret_cast<uintptr_t>(address) % (vec * sizeof(T)) == 0;
    if (fits) return vec;
  }
  return 1;
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
  const int blocks = int((in.columns + SUM_COLUMNS - 1) / SUM_COLUMNS);
  const dim3 block(SUM_COLUMNS, SUM_ROWS);
  if (to.wide_dbias) {
    sum_kernel<<<blocks, block, 0, stream>>>(to.partials, static_cast<float*>(to.dbias), grid.chunks, in.columns);
  } else {
    sum_kernel<<<blocks, block, 0, stream>>>(to.partials, static_cast<T*>(to.dbias), grid.chunks, in.columns);
  }
  return cudaGetLastError();
}

// Calls use(T(), std::integral_constant<Form, form>) for the batch's type and form.
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
  const int most = in.type == Type::float32 ? 4 : 8;  // narrower packs have more tiles, and so fewer chunks each
  int64_t chunks = 1;
  for (int vec : {1, 2, most}) {
    if (in.columns % vec == 0) chunks = std::max<int64_t>(chunks, grid_of(in.rows, in.columns, vec, BACKWARD_BLOCKS).chunks);
  }
  return chunks;
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
