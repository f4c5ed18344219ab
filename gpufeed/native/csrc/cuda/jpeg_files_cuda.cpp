// decode_jpeg_files on CUDA: reads headers on the host, then launches jpeg_files.cu on PyTorch's current stream.

#include "jpeg_files.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "../jpeg_checks.h"

namespace gpufeed {
namespace {

constexpr int64_t MOST_WORKSPACE = int64_t(1) << 30;      // bytes of a chunk's coefficients and planes
constexpr int64_t BLOCK_BYTES = 3 * int64_t(jpeg::BLOCK);  // of one block

// The images in device memory, copied from page-locked memory, which torch keeps until the copy is done
at::Tensor sent(const std::vector<jpeg::Image>& images, const at::Tensor& data) {
  const int64_t bytes = int64_t(images.size() * sizeof(jpeg::Image));
  at::Tensor host = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  std::memcpy(host.mutable_data_ptr<uint8_t>(), images.data(), size_t(bytes));
  return host.to(data.device(), at::kByte, /*non_blocking=*/true);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> decode_jpeg_files(const at::Tensor& data, const at::Tensor& files,
                                                                 const at::Tensor& offsets, bool fancy,
                                                                 const std::optional<at::Tensor>& windows) {
  const int32_t* const kept = check_decode_jpeg_files(data, files, offsets, windows);
  const c10::cuda::CUDAGuard guard(data.device());
  int64_t size = 0;
  std::vector<jpeg::Image> images = jpeg::read_headers(files.const_data_ptr<uint8_t>(), files.numel(),
                                                       offsets.const_data_ptr<int64_t>(), offsets.numel() - 1, size, kept);
  const at::Tensor places = places_of(images);
  at::Tensor pixels = at::empty({size}, data.options());
  at::Tensor faults = at::empty({offsets.numel() - 1}, data.options());
  if (images.empty()) return {pixels, faults, places};
  const std::vector<jpeg::Chunk> chunks = jpeg::cut_into_chunks(images, MOST_WORKSPACE / BLOCK_BYTES);
  int64_t most = 0;
  for (const jpeg::Chunk& chunk : chunks) {
    most = std::max(most, jpeg::workspace_in(nullptr, chunk).bytes);
  }
  const at::Tensor memory = at::empty({most}, data.options());
  const at::Tensor table = sent(images, data);
  const jpeg::Files in{data.const_data_ptr<uint8_t>(), data.numel(),
                       reinterpret_cast<const jpeg::Image*>(table.const_data_ptr<uint8_t>()), fancy,
                       pixels.mutable_data_ptr<uint8_t>(), faults.mutable_data_ptr<uint8_t>()};
  for (const jpeg::Chunk& chunk : chunks) {
    const jpeg::FilesWorkspace work = jpeg::workspace_in(memory.mutable_data_ptr<uint8_t>(), chunk);
    C10_CUDA_CHECK(jpeg::decode_chunk(in, chunk, work, at::cuda::getCurrentCUDAStream()));
  }
  return {pixels, faults, places};
}

}  // namespace

TORCH_LIBRARY_IMPL(gpufeed, CUDA, m) { m.impl("decode_jpeg_files", &decode_jpeg_files); }

}  // namespace gpufeed
