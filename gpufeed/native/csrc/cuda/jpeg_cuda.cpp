// decode_jpegs on CUDA: tensors to the launches of jpeg.cu, on PyTorch's current stream.

#include "jpeg_launch.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "../jpeg_checks.h"

namespace gpufeed {
namespace {

constexpr int64_t WORKSPACE = int64_t(1) << 30;  // bytes of coefficients and planes: 58,254 images of 64 x 64, 4:2:0

// The tensor, or a copy if it is a misaligned view
at::Tensor aligned(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0 ? tensor : tensor.clone();
}

std::tuple<at::Tensor, at::Tensor> decode_jpegs(const at::Tensor& data, const at::Tensor& starts,
                                                const at::Tensor& ends, const at::Tensor& tables_, int64_t height, int64_t width,
                                                int64_t components, int64_t h, int64_t v, bool fancy,
                                                std::optional<int64_t> longest) {
  const jpeg::Shape shape =
      check_decode_jpegs(data, starts, ends, tables_, height, width, components, h, v, longest);
  const c10::cuda::CUDAGuard guard(data.device());
  const at::Tensor tables = aligned(tables_);
  const int64_t count = starts.numel(), samples = int64_t(shape.blocks()) * jpeg::BLOCK;
  at::Tensor images = at::empty({count, height, width, 3}, data.options());
  at::Tensor faults = at::empty({count}, data.options());
  if (count == 0) return {images, faults};
  const int64_t most = std::clamp<int64_t>(WORKSPACE / (3 * samples), 1, std::min(count, jpeg::MOST_IMAGES));
  const at::Tensor lengths = at::empty({count}, data.options().dtype(at::kInt));
  const at::Tensor coefficients = at::empty({most * samples}, data.options().dtype(at::kShort));
  const at::Tensor planes = at::empty({most * samples}, data.options());
  const jpeg::Coded in{data.const_data_ptr<uint8_t>(), data.numel(),
                       starts.const_data_ptr<int64_t>(), ends.const_data_ptr<int64_t>(), count,
                       reinterpret_cast<const jpeg::Tables*>(tables.const_data_ptr<int16_t>()), shape,
                       longest.value_or(jpeg::MOST_BYTES), longest ? jpeg::room_of(*longest) : 0};
  const at::Tensor words = at::empty({jpeg::unstuffed_bytes(in)}, data.options());
  const jpeg::Workspace work{reinterpret_cast<uint32_t*>(words.data_ptr<uint8_t>()),
                             reinterpret_cast<uint32_t*>(lengths.data_ptr<int32_t>()),
                             coefficients.data_ptr<int16_t>(), planes.data_ptr<uint8_t>(), most};
  C10_CUDA_CHECK(jpeg::decode(in, work, fancy, images.data_ptr<uint8_t>(), faults.data_ptr<uint8_t>(),
                              at::cuda::getCurrentCUDAStream()));
  return {images, faults};
}

}  // namespace

TORCH_LIBRARY_IMPL(gpufeed, CUDA, m) { m.impl("decode_jpegs", &decode_jpegs); }

}  // namespace gpufeed
