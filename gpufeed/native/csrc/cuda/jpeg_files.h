// Launches of the kernels of jpeg_files.cu, without torch. All pointers are to device memory, all calls asynchronous.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "../jpeg_header.h"

namespace gpufeed::jpeg {

// Files of a call, and the results. images: from cut_into_chunks.
struct Files {
  const uint8_t* data;
  int64_t bytes;
  const Image* images;
  bool fancy;
  uint8_t* pixels;  // at a multiple of PIXEL_ALIGNMENT
  uint8_t* faults;
};

// The workspace for decoding a chunk, with the chunk's sizes. It need not be initialised.
struct FilesWorkspace {
  uint32_t* words;
  Sums* sums;              // (spans)
  uint32_t* starts;        // (spans) states, see `packed`
  uint32_t* ends;          // (spans)
  uint32_t* changed;       // (spans) numbers of those to decode again
  uint32_t* changed_next;  // (spans) in the next round
  uint32_t* interval_of;   // (spans)
  uint32_t* intervals;     // (intervals)
  uint32_t* first_spans;   // (intervals)
  uint32_t* dct_images;    // (dct_tiles) the image of each tile
  uint32_t* colour_images; // (colour_tiles)
  int16_t* coefficients;   // (blocks * 64), at a multiple of 16
  uint8_t* planes;         // (blocks * 64), at a multiple of 16
  int64_t bytes;           // total size
};

// The workspace of a chunk in one block of memory, each part at a multiple of 256
inline FilesWorkspace workspace_in(uint8_t* memory, const Chunk& chunk) {
  FilesWorkspace work{};
  const auto take = [&](auto*& part, int64_t count) {
    part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(reinterpret_cast<uintptr_t>(memory) + work.bytes);
    work.bytes += (count * int64_t(sizeof(*part)) + 255) / 256 * 256;
  };
  take(work.words, chunk.words);
  take(work.sums, chunk.spans);
  for (uint32_t** part : {&work.starts, &work.ends, &work.changed, &work.changed_next, &work.interval_of}) take(*part, chunk.spans);
  for (uint32_t** part : {&work.intervals, &work.first_spans}) take(*part, chunk.intervals);
  take(work.dct_images, chunk.dct_tiles);
  take(work.colour_images, chunk.colour_tiles);
  take(work.coefficients, chunk.blocks * BLOCK);
  take(work.planes, chunk.blocks * BLOCK);
  return work;
}

// The stream is of the current device.
cudaError_t decode_chunk(const Files& files, const Chunk& chunk, const FilesWorkspace& work, cudaStream_t stream);

}  // namespace gpufeed::jpeg
