// Kernels that walk over the rows of a matrix. A thread keeps its VEC columns for the whole launch, with several rows in
// flight; adjacent blocks cover the same rows. Each block writes partial sums over its rows, which a second kernel adds up:
// the order of summation is fixed, without atomics.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace gpufeed {
namespace {

constexpr int THREADS = 256;

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

// A plain load: a streaming one (__ldcs) took 1 to 5 % longer on an H200.
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

// Two at once: one instruction if the device has it
template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> rounded(const float (&from)[VEC]) {
  Pack<T, VEC> to;
#pragma unroll
  for (int i = 0; i < VEC; i++) to.value[i] = rounded<T>(from[i]);
  return to;
}

// The columns and rows of a thread. A block is blockDim.x packs wide and blockDim.y rows high.
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

// Sums a block's columns over its rows: sums[i] of each thread to one float per column at `to`.
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

constexpr int SUM_COLUMNS = 32, SUM_ROWS = 32;

// dbias = the column sums of the partials, in the same order in every launch
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

template <typename B>
cudaError_t launch_sum(const float* partials, void* to, int chunks, int64_t columns, cudaStream_t stream) {
  const int blocks = int((columns + SUM_COLUMNS - 1) / SUM_COLUMNS);
  sum_kernel<<<blocks, dim3(SUM_COLUMNS, SUM_ROWS), 0, stream>>>(partials, static_cast<B*>(to), chunks, columns);
  return cudaGetLastError();
}

struct Grid {
  int tiles;   // blocks side by side over the columns
  int chunks;  // blocks over the rows
  dim3 block;

  int blocks() const { return tiles * chunks; }
};

inline int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// As many blocks as the device holds at once, or fewer for few rows.
inline Grid grid_of(int64_t rows, int64_t columns, int vec, int blocks_per_sm) {
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

// The most chunks of a matrix for any alignment of its addresses. widest: values in 16 bytes.
inline int64_t most_chunks(int64_t rows, int64_t columns, int widest, int blocks_per_sm) {
  int64_t chunks = 1;
  for (int vec : {1, 2, widest}) {  // narrower packs have more tiles, and so fewer chunks each
    if (columns % vec == 0) chunks = std::max<int64_t>(chunks, grid_of(rows, columns, vec, blocks_per_sm).chunks);
  }
  return chunks;
}

}  // namespace
}  // namespace gpufeed
