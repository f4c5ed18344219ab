// The header of a baseline JPEG, for the decoders of whole files. Without torch.
//
// Source: ITU-T T.81, annex B for the markers, table B.5 for the limits of Huffman tables. Strict on purpose: what is not
// plain baseline of 8 bits in one scan, grayscale or YCbCr, is not taken, as in gpufeed/decoders/jpeg_parser.py.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "jpeg_scan.h"

namespace gpufeed::jpeg {

// One file of a call. Places are bytes of the files' buffer unless stated otherwise.
struct Image {
  int64_t coded;            // the scan's bytes
  int64_t huffman[4];       // counts and symbols: DC and AC of the first component, DC and AC of the others
  int64_t quantisation[3];  // of each component, 64 bytes in zigzag order
  int64_t pixels;           // in the output
  int64_t words, spans, intervals;  // in the workspace: its first word, subsequence and interval
  int64_t blocks;           // its first block in the workspace of its chunk
  Shape shape;              // 0 everywhere in a file that is not taken
  Region region;            // the part that is kept, and the same as an image of its own, which is output
  Shape part;
  uint32_t bytes;           // of the scan
  uint32_t restart;         // MCUs of an interval
  uint32_t interval_count;
  uint32_t dct_tile, colour_tile;  // its first in its chunk
  uint32_t index;           // of the file in the call
  uint8_t fault;            // NO_FAULT, BAD_PLACE, NOT_TAKEN or BAD_WINDOW
};

constexpr int64_t PIXEL_ALIGNMENT = 16;  // of an image in the output, so that it is written in whole words; gaps are zeros

inline int64_t pixel_bytes(const Shape& shape) { return int64_t(shape.height) * shape.width * 3; }

inline uint32_t big_endian_16(const uint8_t* from) { return uint32_t(from[0]) << 8 | from[1]; }

// The content of the segments before the scan so far; places are 0 if not given.
struct Segments {
  int64_t quantisation[4] = {}, huffman[2][2] = {};  // [DC or AC][number]
  int64_t frame = 0, frame_bytes = 0;
  uint32_t restart = 0;
  bool jfif = false;
  int adobe = -1;  // its colour transform
};

inline bool read_quantisation(const uint8_t* data, int64_t at, int64_t end, Segments& to) {
  if ((end - at) % 65 != 0) return false;  // tables of 16 bits are not baseline
  for (; at < end; at += 65) {
    if (data[at] > 3 || std::memchr(data + at + 1, 0, 64) != nullptr) return false;
    to.quantisation[data[at]] = at + 1;
  }
  return true;
}

inline bool read_huffman(const uint8_t* data, int64_t at, int64_t end, Segments& to) {
  while (at < end) {
    if (end - at < 1 + LONGEST || (data[at] & 0xee) != 0) return false;
    const int kind = data[at] >> 4, number = data[at] & 15;
    uint32_t code = 0, symbols = 0;
    for (int length = 1; length <= LONGEST; ++length) {
      const uint32_t count = data[at + length];
      code += count;
      symbols += count;
      if (count > 0 && code >= uint32_t(1) << length) return false;  // the code of all ones is reserved
      code <<= 1;
    }
    const int64_t table = at + 1;
    at = table + LONGEST + symbols;
    if (symbols > 256 || at > end) return false;
    for (int64_t i = table + LONGEST; kind == 0 && i < at; ++i) {
      if (data[i] > MOST_DC_SIZE) return false;
    }
    to.huffman[kind][number] = table;
  }
  return true;
}

// Returns false for a segment that is not supported.
inline bool read_segment(const uint8_t* data, int marker, int64_t at, int64_t end, Segments& to) {
  const int64_t bytes = end - at;
  if (marker == 0xdb) return read_quantisation(data, at, end, to);
  if (marker == 0xc4) return read_huffman(data, at, end, to);
  if (marker == 0xdd) {
    if (bytes != 2) return false;
    to.restart = big_endian_16(data + at);
  } else if (marker == 0xc0) {
    if (to.frame != 0) return false;
    to.frame = at, to.frame_bytes = bytes;
  } else if (marker == 0xe0) {
    to.jfif |= bytes >= 14 && std::memcmp(data + at, "JFIF", 5) == 0;
  } else if (marker == 0xee) {
    if (bytes >= 12 && std::memcmp(data + at, "Adobe", 5) == 0) to.adobe = data[at + 11];
  } else if ((marker & 0xf0) != 0xe0 && marker != 0xfe) {
    return false;
  }
  return true;
}

// Whether the markers say grayscale or YCbCr. Without markers, or if they contradict each other, decoders guess
// differently.
inline bool is_ycbcr(const Segments& segments, const uint8_t* ids) {
  if (ids[0] == ids[3] || ids[0] == ids[6] || ids[3] == ids[6]) return false;
  if (segments.adobe >= 0) return segments.adobe == 1;
  return segments.jfif || (ids[0] == 1 && ids[3] == 2 && ids[6] == 3);
}

// The frame and the scan's own header, which lies from `at` to `end`
inline bool describe(const uint8_t* data, int64_t at, int64_t end, const Segments& segments, Image& image) {
  const uint8_t* const frame = data + segments.frame;
  if (segments.frame == 0 || segments.frame_bytes < 6 || frame[0] != 8) return false;
  const int components = frame[5];
  if ((components != 1 && components != 3) || segments.frame_bytes != 6 + 3 * components) return false;
  const uint8_t *const parts = frame + 6, *const scan = data + at;
  if (end - at != 2 * components + 4 || scan[0] != components) return false;
  const uint8_t* const behind = scan + 1 + 2 * components;
  if (behind[0] != 0 || behind[1] != 63 || behind[2] != 0) return false;
  for (int i = 0; i < components; ++i) {
    const uint8_t *const part = parts + 3 * i, *const tables = scan + 1 + 2 * i;
    if (tables[0] != part[0] || part[2] > 3 || (tables[1] & 0xee) != 0) return false;
    if (i > 0 && part[1] != 0x11) return false;
    if (i == 2 && tables[1] != tables[-1]) return false;  // both chroma components share tables, as in all encoders
    image.quantisation[i] = segments.quantisation[part[2]];
    if (image.quantisation[i] == 0) return false;
    for (int kind = 0; kind < 2 && i < 2; ++kind) {
      const int number = kind == 0 ? tables[1] >> 4 : tables[1] & 15;
      image.huffman[2 * i + kind] = segments.huffman[kind][number];
      if (image.huffman[2 * i + kind] == 0) return false;
    }
  }
  const int h = parts[1] >> 4, v = parts[1] & 15;
  const bool sampled = (h == 1 && v == 1) || (components == 3 && ((h == 2 && (v == 1 || v == 2)) ||
                                                                  (h == 1 && v == 2) || (h == 4 && v == 1)));
  if (!sampled || (components == 3 && !is_ycbcr(segments, parts))) return false;
  image.shape = {int(big_endian_16(frame + 1)), int(big_endian_16(frame + 3)), components, h, v};
  return true;
}

// Whether a file is supported; `image` becomes the content of its header. data: the file; places are relative to it.
// Without restarts there is one interval.
inline bool read_header(const uint8_t* data, int64_t bytes, Image& image) {
  // the last two bytes must end the image: markers before them are found when the scan is decoded
  if (bytes < 4 || data[0] != 0xff || data[1] != 0xd8 || data[bytes - 2] != 0xff || data[bytes - 1] != 0xd9) return false;
  Segments segments;
  int64_t at = 2;
  while (true) {
    if (bytes - at < 4 || data[at] != 0xff) return false;
    const int marker = data[at + 1];
    const int64_t start = at + 4, end = at + 2 + big_endian_16(data + at + 2);  // a length counts its own two bytes
    if (end < start || end > bytes) return false;
    at = end;
    if (marker == 0xda) {
      if (!describe(data, start, end, segments, image)) return false;
      break;
    }
    if (!read_segment(data, marker, start, end, segments)) return false;
  }
  const Shape& shape = image.shape;
  if (shape.height == 0 || shape.width == 0 || at > bytes - 2 || bytes - 2 - at > MOST_BYTES) return false;
  const int64_t mcus = int64_t(shape.mcus_across()) * shape.mcus_down(), blocks = mcus * shape.mcu_blocks();
  // a block has at least two codes of at least one bit each
  if (blocks > MOST_BLOCKS || 4 * (bytes - 2 - at) < blocks) return false;
  image.coded = at;
  image.bytes = uint32_t(bytes - 2 - at);
  image.restart = segments.restart > 0 && segments.restart < mcus ? segments.restart : uint32_t(mcus);
  image.interval_count = uint32_t((mcus + image.restart - 1) / image.restart);
  return true;
}

// Sets what is kept of an image; false if the window is invalid. window: top, left, height and width in pixels, or null
inline bool keep(const int32_t* window, Image& image) {
  const Shape& shape = image.shape;
  const int32_t whole[] = {0, 0, shape.height, shape.width}, *const of = window != nullptr ? window : whole;
  if (of[0] < 0 || of[1] < 0 || of[2] < 1 || of[3] < 1) return false;
  if (of[0] > shape.height - of[2] || of[1] > shape.width - of[3]) return false;
  image.region = region_of(shape, of[0], of[1], of[2], of[3]);
  image.part = part_of(shape, image.region);
  return true;
}

// All files of a call: images with their places in the output, which ends at `pixels`, but not yet in the workspace.
// offsets (count + 1): where each file begins and the last ends in a buffer of `bytes`; windows: (count * 4) or null
inline std::vector<Image> read_headers(const uint8_t* data, int64_t bytes, const int64_t* offsets, int64_t count,
                                       int64_t& pixels, const int32_t* windows = nullptr) {
  std::vector<Image> images(count);  // 0 everywhere
  pixels = 0;
  for (int64_t i = 0; i < count; ++i) {
    Image& image = images[i];
    const int64_t start = offsets[i], end = offsets[i + 1];
    if (start < 0 || start > end || end > bytes) {
      image.fault = BAD_PLACE;
    } else if (!read_header(data + start, end - start, image)) {
      image = {};  // keep nothing of it
      image.fault = NOT_TAKEN;
    } else if (!keep(windows != nullptr ? windows + 4 * i : nullptr, image)) {
      image = {};
      image.fault = BAD_WINDOW;
    } else {
      image.coded += start;
      for (int k = 0; k < 4; ++k) image.huffman[k] += start;
      for (int k = 0; k < 3; ++k) image.quantisation[k] += start;
    }
    image.index = uint32_t(i);
    image.pixels = pixels;
    pixels += (pixel_bytes(image.part) + PIXEL_ALIGNMENT - 1) / PIXEL_ALIGNMENT * PIXEL_ALIGNMENT;
  }
  return images;
}

// Images that are decoded at a time, and their sizes in the workspace
struct Chunk {
  int64_t first = 0, count = 0;  // images
  int64_t words = 0, spans = 0, intervals = 0, blocks = 0;
  uint32_t dct_tiles = 0, colour_tiles = 0;
};

constexpr uint32_t DCT_TILE = 256;      // blocks of a thread block
constexpr uint32_t COLOUR_TILE = 2048;  // spans of eight pixels of a thread block

GPUFEED_BOTH uint32_t tiles_of(uint32_t work, uint32_t each) { return (work + each - 1) / each; }

// Splits a call into chunks of at most `most` blocks, or of one image, and assigns places in the workspace. Images of a
// chunk are sorted, the longest scan first, so that no long one starts last.
inline std::vector<Chunk> cut_into_chunks(std::vector<Image>& images, int64_t most_blocks) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < images.size();) {
    Chunk chunk;
    chunk.first = int64_t(i);
    for (; i < images.size(); ++i, ++chunk.count) {
      const int64_t blocks = images[i].fault == NO_FAULT ? images[i].part.blocks() : 0;
      if (chunk.count > 0 && chunk.blocks + blocks > most_blocks) break;
      chunk.blocks += blocks;
    }
    Image* const first = images.data() + chunk.first;
    std::sort(first, first + chunk.count, [](const Image& a, const Image& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.index < b.index;
    });
    chunk.blocks = 0;
    for (Image* image = first; image != first + chunk.count; ++image) {
      image->words = chunk.words, image->spans = chunk.spans, image->intervals = chunk.intervals;
      image->blocks = chunk.blocks;
      image->dct_tile = chunk.dct_tiles, image->colour_tile = chunk.colour_tiles;
      if (image->fault != NO_FAULT) continue;
      chunk.words += (image->bytes + 3) / 4 + PADDING_WORDS;
      chunk.spans += int64_t(spans_of(image->bytes, SUBSEQUENCE)) + image->interval_count;
      chunk.intervals += image->interval_count + 1;
      chunk.blocks += image->part.blocks();
      chunk.dct_tiles += tiles_of(image->part.blocks(), DCT_TILE);
      chunk.colour_tiles += tiles_of(image->part.spans(), COLOUR_TILE);
    }
    chunks.push_back(chunk);
  }
  return chunks;
}

}  // namespace gpufeed::jpeg
