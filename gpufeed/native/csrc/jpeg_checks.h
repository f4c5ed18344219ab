// Checks of the arguments of decode_jpegs, shared by the CPU and CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <vector>

#include "checks.h"
#include "jpeg_header.h"

namespace gpufeed {

inline void check_vector(const at::Tensor& tensor, const char* name, at::ScalarType type, const at::Tensor& data) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == type, "found: ", name, " of ", tensor.scalar_type(), "; expected: ", type,
                   "; what to do: convert it");
  TORCH_CHECK_VALUE(tensor.dim() == 1 && tensor.is_contiguous(), "found: ", name, " of shape ", text_of(tensor.sizes()),
                    "; expected: one dimension, contiguous; what to do: pass it flat");
  check_device(tensor, name, data);
}

// data uint8 (bytes), starts and ends int64 (N), tables int16, all flat and on one device; longest: bytes of an image
inline jpeg::Shape check_decode_jpegs(const at::Tensor& data, const at::Tensor& starts, const at::Tensor& ends,
                                      const at::Tensor& tables, int64_t height, int64_t width, int64_t components, int64_t h, int64_t v,
                                      std::optional<int64_t> longest) {
  check_vector(data, "data", at::kByte, data);
  check_vector(starts, "starts", at::kLong, data);
  check_vector(ends, "ends", at::kLong, data);
  check_vector(tables, "tables", at::kShort, data);
  TORCH_CHECK_VALUE(starts.numel() == ends.numel(), "found: ", std::to_string(starts.numel()), " starts and ",
                    std::to_string(ends.numel()), " ends; expected: one of each an image; what to do: pass both whole");
  TORCH_CHECK_VALUE(tables.nbytes() == sizeof(jpeg::Tables), "found: tables of ", std::to_string(tables.nbytes()),
                    " bytes; expected: ", std::to_string(sizeof(jpeg::Tables)),
                    "; what to do: make them by gpufeed.native.jpeg_op.tables_of");
  TORCH_CHECK_VALUE(!longest || (*longest >= 0 && *longest <= jpeg::MOST_BYTES), "found: longest ",
                    std::to_string(longest.value_or(0)), "; expected: from 0 to ", std::to_string(jpeg::MOST_BYTES),
                    " bytes; what to do: pass the length of the longest image");
  const bool sampled = (h == 1 && v == 1) || (components == 3 && ((h == 2 && (v == 1 || v == 2)) ||
                                                                  (h == 1 && v == 2) || (h == 4 && v == 1)));
  TORCH_CHECK_VALUE((components == 1 || components == 3) && sampled, "found: ", std::to_string(components),
                    " components sampled ", std::to_string(h), " x ", std::to_string(v),
                    "; expected: 1, or 3 sampled 1 x 1, 2 x 1, 2 x 2, 1 x 2 or 4 x 1; what to do: use another decoder");
  const bool sides = height >= 1 && height <= jpeg::MOST_SIDE && width >= 1 && width <= jpeg::MOST_SIDE;
  const int64_t blocks =
      sides ? ((height + 8 * v - 1) / (8 * v)) * ((width + 8 * h - 1) / (8 * h)) * (components == 1 ? 1 : h * v + 2) : 0;
  TORCH_CHECK_VALUE(sides && blocks <= jpeg::MOST_BLOCKS, "found: images of ", std::to_string(height), " x ",
                    std::to_string(width), "; expected: sides from 1 to ", std::to_string(jpeg::MOST_SIDE),
                    " and at most ", std::to_string(jpeg::MOST_BLOCKS), " blocks; what to do: use another decoder");
  return {int(height), int(width), int(components), int(h), int(v)};
}

// data uint8 (bytes) on the op's device, files the same bytes, offsets int64 (N + 1) and windows int32 (N, 4) on the host;
// returns the windows, null for none
inline const int32_t* check_decode_jpeg_files(const at::Tensor& data, const at::Tensor& files, const at::Tensor& offsets,
                                              const std::optional<at::Tensor>& windows) {
  check_vector(data, "data", at::kByte, data);
  check_vector(files, "files", at::kByte, files);
  check_vector(offsets, "offsets", at::kLong, files);
  TORCH_CHECK_VALUE(files.is_cpu() && files.numel() == data.numel(), "found: files of ", std::to_string(files.numel()),
                    " bytes on ", files.device(), " and data of ", std::to_string(data.numel()),
                    "; expected: the same bytes on the CPU; what to do: pass what data was copied from");
  TORCH_CHECK_VALUE(offsets.numel() > 0, "found: no offsets; expected: one more than files; what to do: pass (0,) ",
                    "for no files");
  if (!windows) return nullptr;
  const int64_t count = offsets.numel() - 1;
  TORCH_CHECK_VALUE(windows->is_cpu() && windows->scalar_type() == at::kInt && windows->is_contiguous() &&
                        windows->dim() == 2 && windows->size(0) == count && windows->size(1) == 4,
                    "found: windows of ", windows->scalar_type(), " of shape ", text_of(windows->sizes()), " on ",
                    windows->device(), "; expected: Int of shape [", std::to_string(count),
                    ", 4] on the CPU, contiguous; what to do: pass top, left, height and width of each file");
  return windows->const_data_ptr<int32_t>();
}

// int64 (7, N): where each image begins in the output; height and width of what is kept of it; the first row and column
// of that in the whole image; height and width of the whole image
inline at::Tensor places_of(const std::vector<jpeg::Image>& images) {
  at::Tensor places = at::empty({7, int64_t(images.size())}, at::TensorOptions().dtype(at::kLong));
  int64_t* const to = places.mutable_data_ptr<int64_t>();
  const size_t count = images.size();
  for (size_t i = 0; i < count; ++i) {
    const jpeg::Shape &whole = images[i].shape, &part = images[i].part;
    const int64_t row[] = {images[i].pixels, part.height, part.width, images[i].region.top * 8 * whole.v,
                           images[i].region.left * 8 * whole.h, whole.height, whole.width};
    for (size_t k = 0; k < 7; ++k) to[k * count + i] = row[k];
  }
  return places;
}

}  // namespace gpufeed
