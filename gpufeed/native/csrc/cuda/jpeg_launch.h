// Launches of the kernels of jpeg.cu, without torch. All pointers are to device memory, all calls asynchronous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../jpeg.h"

namespace gpufeed::jpeg {

// N coded images: the bytes of all, and where each begins and ends. The words of an image need their own place. With room
// 0 it follows from where the image begins, so images must be adjacent and in order. Otherwise each has `room` words, in
// any order. tables: of sizeof(Tables), at a multiple of 16.
struct Coded {
  const uint8_t* data;
  int64_t bytes;
  const int64_t* starts;  // (count)
  const int64_t* ends;    // (count)
  int64_t count;
  const Tables* tables;
  Shape shape;
  int64_t longest;  // bytes of an image; a longer one is a fault
  int64_t room;     // 0, or room_of(longest)
};

// The workspace. words: unstuffed_bytes, at a multiple of 4; lengths (count); coefficients and planes: blocks * 64 for each
// of `images` images, at a multiple of 16. So many images are decoded at a time.
struct Workspace {
  uint32_t* words;
  uint32_t* lengths;
  int16_t* coefficients;
  uint8_t* planes;
  int64_t images;
};

// Words of an image with this many bytes, and two of zero padding
constexpr int64_t room_of(int64_t bytes) { return (bytes + 3) / 4 + 2; }

// Bytes of Workspace::words
int64_t unstuffed_bytes(const Coded& in);

// The most images of a Workspace
constexpr int64_t MOST_IMAGES = 65535;

// images (count, height, width, 3), at a multiple of 8; faults (count). The stream is of the current device.
cudaError_t decode(const Coded& in, const Workspace& work, bool fancy, uint8_t* images, uint8_t* faults,
                   cudaStream_t stream);

}  // namespace gpufeed::jpeg
