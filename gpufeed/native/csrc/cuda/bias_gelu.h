// Launches of the kernels of bias_gelu.cu, without torch. All pointers are to device memory, and all calls asynchronous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../form.h"
#include "type.h"

namespace gpufeed {

// A batch of rows and the bias of each row, which may be null, and is float32 or of the rows' type.
struct Biased {
  Type type;
  Form form;
  const void* x;  // (rows, columns)
  const void* bias;  // (columns)
  bool wide_bias;  // float32
  int64_t rows;
  int64_t columns;
};

// out (rows, columns) = gelu(x + bias). The stream is of the current device.
cudaError_t bias_gelu_forward(const Biased& in, void* out, cudaStream_t stream);

// Rows of float32 (columns) that the backward pass needs as workspace on the current device.
int64_t bias_gelu_partials(const Biased& in);

// dx (rows, columns) = grad * gelu'(x + bias); dbias (columns) = the sum of dx over the rows before rounding, in an order
// that depends only on the shape, the alignment of the addresses and the device. wide_dbias: dbias is float32, else of
// the rows' type.
cudaError_t bias_gelu_backward(const Biased& in, const void* grad, void* dx, float* partials, void* dbias,
                               bool wide_dbias, cudaStream_t stream);

}  // namespace gpufeed
