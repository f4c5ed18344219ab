// decode_jpegs and decode_jpeg_files on the CPU: the same bytes as on CUDA, as a reference for tests; slower than
// libjpeg-turbo.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "jpeg_checks.h"
#include "jpeg_host.h"

namespace gpufeed {
namespace {

std::tuple<at::Tensor, at::Tensor> decode_jpegs(const at::Tensor& data, const at::Tensor& starts,
                                                const at::Tensor& ends, const at::Tensor& tables, int64_t height, int64_t width,
                                                int64_t components, int64_t h, int64_t v, bool fancy,
                                                std::optional<int64_t> longest) {
  const jpeg::Shape shape =
      check_decode_jpegs(data, starts, ends, tables, height, width, components, h, v, longest);
  const int64_t most = longest.value_or(jpeg::MOST_BYTES);
  const int64_t count = starts.numel(), bytes = data.numel(), size = height * width * 3;
  at::Tensor images = at::empty({count, height, width, 3}, data.options());
  at::Tensor faults = at::empty({count}, data.options());
  const uint8_t* from = data.const_data_ptr<uint8_t>();
  const int64_t *first = starts.const_data_ptr<int64_t>(), *last = ends.const_data_ptr<int64_t>();
  const auto& coding = *reinterpret_cast<const jpeg::Tables*>(tables.const_data_ptr<int16_t>());
  uint8_t* to = images.mutable_data_ptr<uint8_t>();
  uint8_t* fault = faults.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    jpeg::Scratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      if (jpeg::lies_inside(first[i], last[i], bytes, most)) {
        fault[i] = jpeg::decode_image(coding, shape, from + first[i], last[i] - first[i], fancy, to + i * size, scratch);
      } else {
        fault[i] = jpeg::BAD_PLACE;
        std::memset(to + i * size, 0, size);
      }
    }
  });
  return {images, faults};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> decode_jpeg_files(const at::Tensor& data, const at::Tensor& files,
                                                                 const at::Tensor& offsets, bool fancy,
                                                                 const std::optional<at::Tensor>& windows) {
  const int32_t* const kept = check_decode_jpeg_files(data, files, offsets, windows);
  const uint8_t* const from = files.const_data_ptr<uint8_t>();
  int64_t size = 0;
  const std::vector<jpeg::Image> images =
      jpeg::read_headers(from, files.numel(), offsets.const_data_ptr<int64_t>(), offsets.numel() - 1, size, kept);
  at::Tensor pixels = at::zeros({size}, data.options());
  at::Tensor faults = at::empty({offsets.numel() - 1}, data.options());
  uint8_t* const to = pixels.mutable_data_ptr<uint8_t>();
  uint8_t* const fault = faults.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, int64_t(images.size()), 1, [&](int64_t begin, int64_t end) {
    jpeg::Scratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      fault[i] = jpeg::decode_file(from, images[i], fancy, to + images[i].pixels, scratch);
    }
  });
  return {pixels, faults, places_of(images)};
}

}  // namespace

TORCH_LIBRARY_IMPL(gpufeed, CPU, library) {
  library.impl("decode_jpegs", decode_jpegs);
  library.impl("decode_jpeg_files", decode_jpeg_files);
}

}  // namespace gpufeed
