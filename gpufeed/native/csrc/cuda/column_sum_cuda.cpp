// column_sum on CUDA: a tensor to the launches of column_sum.cu, on PyTorch's current stream.

#include "column_sum.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "../checks.h"
#include "ops_cuda.h"

namespace gpufeed {
namespace {

at::Tensor column_sum_cuda(const at::Tensor& x) {
  const Rows shape = check_column_sum(x);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor in = x.contiguous();
  at::Tensor to = at::empty({shape.columns}, in.options());
  if (in.numel() == 0) return to.zero_();
  const Type type = type_of(in.scalar_type());
  const at::Tensor partials = at::empty({column_sum_partials(type, shape.rows, shape.columns), shape.columns},
                                        in.options().dtype(at::kFloat));
  C10_CUDA_CHECK(column_sum(type, in.const_data_ptr(), shape.rows, shape.columns, partials.data_ptr<float>(),
                            to.data_ptr(), at::cuda::getCurrentCUDAStream()));
  return to;
}

}  // namespace

TORCH_LIBRARY_IMPL(gpufeed, CUDA, m) { m.impl("column_sum", &column_sum_cuda); }

}  // namespace gpufeed
