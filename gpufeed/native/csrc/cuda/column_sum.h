// Launches of the kernels of column_sum.cu, without torch. All pointers are to device memory, all calls asynchronous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "type.h"

namespace gpufeed {

// Rows of float32 (columns) that column_sum needs as workspace on the current device.
int64_t column_sum_partials(Type type, int64_t rows, int64_t columns);

// to (columns) = the sums of x (rows, columns) over its rows, of x's type. They are added in float32, in an order that
// depends only on the shape, the alignment of x and the device. The stream is of the current device.
cudaError_t column_sum(Type type, const void* x, int64_t rows, int64_t columns, float* partials, void* to,
                       cudaStream_t stream);

}  // namespace gpufeed
