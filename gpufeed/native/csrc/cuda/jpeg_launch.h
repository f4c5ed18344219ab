// Launches of the kernels of jpeg.cu, without torch. Every pointer is to device memory; nothing waits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../jpeg.h"

namespace gpufeed::jpeg {

// N images as they come: bytes of all, and where each begins and ends. Their words need places of their own: with room 0
// each has its place by where it begins, so that images must stand one behind the other; else each has `room` words,
// whatever the order. tables: of sizeof(Tables), at a multiple of 16.
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

// What decoding needs beside. words: unstuffed_bytes, at a multiple of 4; lengths (count); coefficients and planes:
// blocks * 64 of each of `images` images, at a multiple of 16, which are decoded at a time.
struct Workspace {
  uint32_t* words;
  uint32_t* lengths;
  int16_t* coefficients;
  uint8_t* planes;
  int64_t images;
};

// Words of an image of so many bytes, and two to be filled up with zeros
constexpr int64_t room_of(int64_t bytes) { return (bytes + 3) / 4 + 2; }

// Bytes of Workspace::words
int64_t unstuffed_bytes(const Coded& in);

// The most images that Workspace may name
constexpr int64_t MOST_IMAGES = 65535;

// images (count, height, width, 3), at a multiple of 8; faults (count). The stream is of the current device.
cudaError_t decode(const Coded& in, const Workspace& work, bool fancy, uint8_t* images, uint8_t* faults,
                   cudaStream_t stream);

}  // namespace gpufeed::jpeg
