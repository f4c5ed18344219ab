// One JPEG on the CPU, from its coded bytes or its file, by the functions that the CUDA kernels use. Without torch.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "jpeg_header.h"

namespace gpufeed::jpeg {

// Buffers for decoding one image, reused from image to image.
struct Scratch {
  std::vector<uint32_t> words;
  std::vector<int16_t> coefficients;
  std::vector<uint8_t> planes;
  std::vector<uint32_t> intervals;
  Tables tables;
};

// The coded bytes without stuffing, as whole words; `length` becomes the number of bytes.
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

// Returns false if coefficients are too large.
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

// Turns coefficients in `scratch` into uint8 (height, width, 3), or fills that with 0 if there is a fault.
inline uint8_t to_pixels(const Tables& tables, Shape shape, uint8_t fault, bool smooth, uint8_t* to, Scratch& scratch) {
  const int blocks = shape.blocks();
  scratch.planes.resize(size_t(blocks) * BLOCK);
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

// Decodes one image into uint8 (height, width, 3), or fills that with 0 and returns the fault.
inline uint8_t decode_image(const Tables& tables, Shape shape, const uint8_t* from, int64_t bytes, bool fancy,
                            uint8_t* to, Scratch& scratch) {
  uint32_t length = uint32_t(bytes);
  scratch.coefficients.assign(size_t(shape.blocks()) * BLOCK, 0);
  uint8_t fault = unstuff(from, length, scratch.words);
  if (fault == NO_FAULT) {
    fault = decode_entropy(tables.huffman, shape, scratch.words.data(), length, scratch.coefficients.data());
  }
  return to_pixels(tables, shape, fault, smooths(shape, fancy), to, scratch);
}

// One table of a file: its counts and symbols
inline void expand_huffman(const uint8_t* from, bool dc, Huffman& to) {
  Codes codes;
  find_codes(from, codes);
  uint8_t symbols[256] = {};
  std::memcpy(symbols, from + LONGEST, codes.before[LONGEST] + codes.end[LONGEST] - codes.first[LONGEST]);
  for (uint32_t i = 0; i < 1 << LOOKUP_BITS; ++i) to.lookup[i] = lookup_entry(codes, symbols, i, dc);
  for (uint32_t i = 0; i < 256; ++i) to.symbols[i] = symbol_entry(codes, symbols, i, dc);
  fill_limits(codes, to);
}

inline void read_tables(const uint8_t* data, const Image& image, Tables& to) {
  for (int i = 0; i < (image.shape.components == 3 ? 4 : 2); ++i) {
    expand_huffman(data + image.huffman[i], i % 2 == 0, to.huffman[i]);
  }
  for (int i = 0; i < image.shape.components; ++i) {
    for (int k = 0; k < BLOCK; ++k) to.quantisation[i][k] = data[image.quantisation[i] + k];
  }
}

// A scan's bytes without stuffing and restart markers, as padded words. intervals: the byte where each begins, and the end
// of the last.
inline uint8_t unstuff_scan(const uint8_t* from, const Image& image, std::vector<uint32_t>& words,
                            std::vector<uint32_t>& intervals) {
  words.assign((image.bytes + 3) / 4 + PADDING_WORDS, 0);
  intervals.assign(1, 0);
  uint8_t* const to = reinterpret_cast<uint8_t*>(words.data());
  uint32_t written = 0;
  bool marker = false, order = true;
  for (uint32_t i = 0; i < image.bytes; ++i) {
    const uint8_t before = i > 0 ? from[i - 1] : 0, behind = i + 1 < image.bytes ? from[i + 1] : 0;
    marker |= is_wrong_marker(before, from[i]);
    if (before == 0xff && is_restart(from[i])) {
      order &= (from[i] & 7) == ((intervals.size() - 1) & 7);
      intervals.push_back(written);
    }
    if (is_data(before, from[i], behind)) to[written++] = from[i];
  }
  intervals.push_back(written);
  if (marker || (image.bytes > 0 && from[image.bytes - 1] == 0xff)) return BAD_MARKER;
  return order && intervals.size() == image.interval_count + 1 ? NO_FAULT : BAD_RESTART;
}

// Decodes the coefficients that are kept of an image into `scratch`, each interval serially
inline uint8_t decode_scan(const uint8_t* data, const Image& image, Scratch& scratch) {
  scratch.coefficients.resize(size_t(image.part.blocks()) * BLOCK);
  uint8_t fault = unstuff_scan(data + image.coded, image, scratch.words, scratch.intervals);
  const Scan scan{scratch.tables.huffman, scratch.words.data(), image.shape.luma_blocks(), image.shape.mcu_blocks()};
  for (uint32_t i = 0; i < image.interval_count && fault == NO_FAULT; ++i) {
    const uint32_t end = scratch.intervals[i + 1] * 8;
    const Span whole{scratch.intervals[i] * 8, end, end, i, i};
    const Blocks own = blocks_of(image.shape, image.region, image.restart, i, scratch.coefficients.data());
    fault = write_span(scan, whole, 0, Sums{}, own, nullptr);
  }
  return fault;
}

// Decodes one file, whose header was read, like decode_image.
inline uint8_t decode_file(const uint8_t* data, const Image& image, bool fancy, uint8_t* to, Scratch& scratch) {
  if (image.fault != NO_FAULT) return image.fault;
  read_tables(data, image, scratch.tables);
  const uint8_t fault = decode_scan(data, image, scratch);
  return to_pixels(scratch.tables, image.part, fault, smooths(image.shape, fancy), to, scratch);
}

}  // namespace gpufeed::jpeg
