// The sums of a matrix over its rows, in one pass: the gradient of a linear layer's bias.

#include "column_sum.h"
#include "rows.cuh"

namespace gpufeed {
namespace {

constexpr int ROWS_IN_FLIGHT = 4, BLOCKS = 4;

template <typename T, int VEC>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    column_sum_kernel(const T* __restrict__ x, float* __restrict__ partials, int64_t rows, int64_t columns, int tiles) {
  const Place at = place<VEC>(columns, tiles);
  float sums[VEC] = {};
  if (at.inside) {
    for (int64_t row = at.row; row < rows; row += ROWS_IN_FLIGHT * at.step) {
      Pack<T, VEC> in[ROWS_IN_FLIGHT];
#pragma unroll
      for (int k = 0; k < ROWS_IN_FLIGHT; k++) {
        int64_t here = row + k * at.step;
        if (here < rows) in[k] = read<T, VEC>(x + here * columns + at.column);
      }
#pragma unroll
      for (int k = 0; k < ROWS_IN_FLIGHT; k++) {
        if (row + k * at.step >= rows) break;
#pragma unroll
        for (int i = 0; i < VEC; i++) sums[i] += to_float(in[k].value[i]);
      }
    }
  }
  reduce_block<VEC>(sums, at, partials + (blockIdx.x / tiles) * columns, columns);
}

struct Matrix {
  const void* x;
  int64_t rows;
  int64_t columns;
};

template <typename T, int VEC>
cudaError_t launch(const Matrix& of, float* partials, void* to, cudaStream_t stream) {
  const Grid grid = grid_of(of.rows, of.columns, VEC, BLOCKS);
  column_sum_kernel<T, VEC><<<grid.blocks(), grid.block, 0, stream>>>(static_cast<const T*>(of.x), partials, of.rows,
                                                                      of.columns, grid.tiles);
  const cudaError_t error = cudaGetLastError();
  return error != cudaSuccess ? error : launch_sum<T>(partials, to, grid.chunks, of.columns, stream);
}

template <typename T>
cudaError_t sum(const Matrix& of, float* partials, void* to, cudaStream_t stream) {
  switch (vec_of<T>(of.columns, {of.x})) {
    case 1:
      return launch<T, 1>(of, partials, to, stream);
    case 2:
      return launch<T, 2>(of, partials, to, stream);
    default:
      return launch<T, 16 / sizeof(T)>(of, partials, to, stream);
  }
}

}  // namespace

int64_t column_sum_partials(Type type, int64_t rows, int64_t columns) {
  return most_chunks(rows, columns, type == Type::float32 ? 4 : 8, BLOCKS);
}

cudaError_t column_sum(Type type, const void* x, int64_t rows, int64_t columns, float* partials, void* to,
                       cudaStream_t stream) {
  const Matrix of{x, rows, columns};
  switch (type) {
    case Type::float32:
      return sum<float>(of, partials, to, stream);
    case Type::float16:
      return sum<__half>(of, partials, to, stream);
    case Type::bfloat16:
      return sum<__nv_bfloat16>(of, partials, to, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpufeed
