// One JPEG on the CPU, by the functions that the CUDA kernels use. Without torch.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "jpeg.h"

namespace gpufeed::jpeg {

// Where coefficient k of the zigzag order stands in a block, row by row (T.81, figure A.6)
constexpr uint8_t ZIGZAG[BLOCK] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                   12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                   35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                   58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// What decoding one image needs beside its bytes; kept from image to image.
struct Scratch {
  std::vector<uint32_t> words;
  std::vector<int16_t> coefficients;
  std::vector<uint8_t> planes;
};

// The coded bytes as whole words without their stuffing; `length` becomes the bytes that are left.
inline uint8_t unstuff(const uint8_t* from, uint32_t& length, std::vector<uint32_t>& words) {
  words.assign((length + 3) / 4, 0);
  uint8_t* to = reinterpret_cast<uint8_t*>(words.data());
  uint8_t before = 0;
  uint32_t written = 0;
  for (uint32_t i = 0; i < length; ++i) {
    if (before != 0xff || from[i] != 0) to[written++] = from[i];
    if (before == 0xff && from[i] != 0) return BAD_MARKER;
    before = from[i];
  }
  length = written;
  return before == 0xff ? BAD_MARKER : NO_FAULT;
}

// false if its coefficients are too large
inline bool block_to_samples(const int16_t* coefficients, const uint16_t* quantisation, uint8_t* to, int pitch) {
  int32_t work[8][8], line[8];
  bool large = false;
  for (int k = 0; k < BLOCK; ++k) {
    const int32_t value = int32_t(coefficients[k]) * quantisation[k];
    large |= too_large(value);
    work[ZIGZAG[k] / 8][ZIGZAG[k] % 8] = value;
  }
  for (int column = 0; column < 8; ++column) {
    for (int i = 0; i < 8; ++i) line[i] = work[i][column];
    inverse_dct<COLUMN_SHIFT>(line);
    for (int i = 0; i < 8; ++i) {
      large |= too_large(line[i]);
      work[i][column] = line[i];
    }
  }
  for (int row = 0; row < 8; ++row) {
    inverse_dct<ROW_SHIFT>(work[row]);
    for (int i = 0; i < 8; ++i) to[row * pitch + i] = uint8_t(clamped(work[row][i] + 128));
  }
  return !large;
}

// Decodes one image into uint8 (height, width, 3), or fills that with 0 and says what is wrong.
inline uint8_t decode_image(const Tables& tables, Shape shape, const uint8_t* from, int64_t bytes, bool fancy,
                            uint8_t* to, Scratch& scratch) {
  uint32_t length = uint32_t(bytes);
  const int blocks = shape.blocks();
  scratch.coefficients.assign(size_t(blocks) * BLOCK, 0);
  scratch.planes.resize(size_t(blocks) * BLOCK);
  uint8_t fault = unstuff(from, length, scratch.words);
  if (fault == NO_FAULT) {
    fault = decode_entropy(tables.huffman, shape, scratch.words.data(), length, scratch.coefficients.data());
  }
  for (int block = 0; block < blocks && fault == NO_FAULT; ++block) {
    const Place place = place_of(shape, block);
    if (!block_to_samples(scratch.coefficients.data() + size_t(block) * BLOCK, tables.quantisation[place.component],
                          scratch.planes.data() + place.start, place.pitch)) {
      fault = BAD_RANGE;
    }
  }
  if (fault != NO_FAULT) {
    std::memset(to, 0, size_t(shape.height) * shape.width * 3);
    return fault;
  }
  const bool smooth = smooths(shape, fancy);
  by_sampling(shape, [&](auto of) {
    for (int y = 0; y < shape.height; ++y) {
      for (int x = 0; x < shape.width; x += SPAN) {
        uint32_t words[SPAN_WORDS];
        span_at<decltype(of)>(shape, scratch.planes.data(), x, y, smooth, words);
        std::memcpy(to + (size_t(y) * shape.width + x) * 3, words, std::min(SPAN, shape.width - x) * 3);
      }
    }
  });
  return NO_FAULT;
}

}  // namespace gpufeed::jpeg
