// Launches of the kernels of jpeg_files.cu, without torch. Every pointer is to device memory; nothing waits.
#pragma once

#include <cuda_runtime_api.h>

#include "../jpeg_header.h"

namespace gpufeed::jpeg {

// Files of a call, and what becomes of them. images: as cut_into_chunks leaves them.
struct Files {
  const uint8_t* data;
  int64_t bytes;
  const Image* images;
  bool fancy;
  uint8_t* pixels;  // at a multiple of PIXEL_ALIGNMENT
  uint8_t* faults;
};

// What decoding a chunk needs beside, of the sizes that the chunk says. It is written before it is read.
struct FilesWorkspace {
  uint32_t* words;
  Sums* sums;              // (spans)
  uint32_t* starts;        // (spans) states, as `packed` has them
  uint32_t* ends;          // (spans)
  uint32_t* changed;       // (spans) numbers of those that must be decoded again
  uint32_t* interval_of;   // (spans)
  uint32_t* intervals;     // (intervals)
  uint32_t* first_spans;   // (intervals)
  uint32_t* dct_images;    // (dct_tiles) whose they are
  uint32_t* colour_images; // (colour_tiles)
  int16_t* coefficients;   // (blocks * 64), at a multiple of 16
  uint8_t* planes;         // (blocks * 64), at a multiple of 16
};

// The stream is of the current device.
cudaError_t decode_chunk(const Files& files, const Chunk& chunk, const FilesWorkspace& work, cudaStream_t stream);

}  // namespace gpufeed::jpeg
