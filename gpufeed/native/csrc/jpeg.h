// Baseline JPEG, one image at a time: shared by CPU and CUDA, so that both give the same bytes.
//
// Entropy coding by ITU-T T.81, annex F. The inverse DCT is that of C. Loeffler, A. Ligtenberg and G. Moschytz,
// Practical fast 1-D DCT algorithms with 11 multiplications, ICASSP 1989, in fixed point with the precision of
// libjpeg's "islow": constants of 13 bits, two bits more between the passes. Upsampling and colour round as
// libjpeg-turbo's do, plain (chroma repeated) or "fancy" (weights 3 and 1). All of it is integer arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define GPUFEED_BOTH __host__ __device__ __forceinline__
#define GPUFEED_TABLE static __constant__ const
#else
#define GPUFEED_BOTH inline
#define GPUFEED_TABLE constexpr
#endif

namespace gpufeed::jpeg {

constexpr int LOOKUP_BITS = 11;              // codes of up to this length take one step
constexpr int LONGEST = 16;                  // bits of a code
constexpr int FIRST_LONGER = LONGEST - LOOKUP_BITS;
constexpr int BLOCK = 64;                    // coefficients of a block, 8 x 8
constexpr int MOST_DC = 2047;                // of 8-bit samples
// Of a coefficient, and of the result of the transform's first pass; 8-bit samples stay below an eighth of it. Beyond it,
// libjpeg-turbo's decoders for different processors give different results.
constexpr int MOST_VALUE = 16383;
constexpr int64_t MOST_BYTES = 1 << 28;      // of one image, so that 32 bits can count its bits
constexpr int64_t MOST_BLOCKS = 1 << 20;     // of one image
constexpr int64_t MOST_SIDE = 65535;

// Place of zigzag coefficient k in a block, row by row (T.81, figure A.6)
GPUFEED_TABLE uint8_t ZIGZAG[BLOCK] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                   12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                   35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                   58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// What is wrong with an image, whose pixels are then 0.
enum Fault : uint8_t {
  NO_FAULT = 0,
  BAD_PLACE = 1,   // its start and end are not in the buffer, not in order, or too far apart
  BAD_MARKER = 2,  // a marker inside the coded bytes
  BAD_CODE = 3,    // bits that are no code of the table
  BAD_RUN = 4,     // a run of zeros beyond the last coefficient
  CUT_OFF = 5,     // its bytes end too early
  LEFT_OVER = 6,   // whole bytes are left over
  BAD_DC = 7,      // a mean that 8-bit samples cannot have
  BAD_RANGE = 8,   // coefficients that 8-bit samples cannot have
  // of whole files only
  NOT_TAKEN = 9,          // its header is incomplete, or not that of a baseline file (see jpeg_header.h)
  BAD_RESTART = 10,       // its restart markers are too few, too many or not in order
  NOT_SYNCHRONISED = 11,  // parallel decoding did not converge within MOST_ROUNDS
  BAD_WINDOW = 12,        // its window is not inside of it
};

// Whether an image's coded bytes, at most `longest`, lie in a buffer of `bytes`
GPUFEED_BOTH bool lies_inside(int64_t start, int64_t end, int64_t bytes, int64_t longest) {
  return start >= 0 && start <= end && end <= bytes && end - start <= longest;
}

// One Huffman table. An entry is length | run << 5 | size << 9, or 0 for bits that are no code. A code is longer than
// LOOKUP_BITS if the next 16 bits are at least limit[FIRST_LONGER]. It has length n if they are below
// limit[n - LOOKUP_BITS - 1], and its entry in symbols is at its first n bits + offset.
struct Huffman {
  uint16_t lookup[1 << LOOKUP_BITS];
  uint16_t limit[8];
  uint16_t offset[8];
  uint16_t symbols[256];
};

// DC and AC of the first component, DC and AC of the others; divisors in zigzag order. Made by gpufeed/native/jpeg_op.py.
struct Tables {
  Huffman huffman[4];
  uint16_t quantisation[3][BLOCK];
};
static_assert(sizeof(Tables) % 16 == 0 && sizeof(Huffman) % 16 == 0, "copied in words of 16 bytes");

// Of one image. components: 1 or 3; h, v: luma samples per chroma sample, along a row and a column.
struct Shape {
  int height, width, components, h, v;

  GPUFEED_BOTH int mcus_across() const { return (width + 8 * h - 1) / (8 * h); }
  GPUFEED_BOTH int mcus_down() const { return (height + 8 * v - 1) / (8 * v); }
  GPUFEED_BOTH int luma_blocks() const { return h * v; }  // of an MCU
  GPUFEED_BOTH int mcu_blocks() const { return components == 1 ? 1 : h * v + 2; }
  GPUFEED_BOTH int blocks() const { return mcus_across() * mcus_down() * mcu_blocks(); }
  GPUFEED_BOTH int spans() const { return (width + 7) / 8 * height; }  // of eight pixels of a row
  GPUFEED_BOTH int colour_width() const { return (width + h - 1) / h; }  // samples that the image has
};

// The MCUs of an image that are kept, which cover a window: rows from `top` on and columns from `left` on. row: MCUs in a
// row of the whole image.
struct Region {
  int top, left, down, across, row;

  // How many of them precede an MCU in the order of the scan
  GPUFEED_BOTH int before(int mcu) const {
    const int y = mcu / row - top, x = mcu % row - left;
    if (y < 0) return 0;
    return y >= down ? down * across : y * across + (x < 0 ? 0 : x > across ? across : x);
  }
  GPUFEED_BOTH bool has(int mcu) const {
    const int y = mcu / row - top, x = mcu % row - left;
    return y >= 0 && y < down && x >= 0 && x < across;
  }
  GPUFEED_BOTH int end() const { return (top + down - 1) * row + left + across; }  // the MCU after the last
  // Successive MCUs that are kept, and the gap between two such stretches
  GPUFEED_BOTH uint32_t stretch() const { return across == row ? ~0u : uint32_t(across); }
  GPUFEED_BOTH uint32_t gap() const { return uint32_t(row - across); }
  // From an MCU on, how many successive ones are kept or not kept, as it is itself
  GPUFEED_BOTH uint32_t run(int mcu) const {
    if (has(mcu)) return stretch() - uint32_t(mcu % row - left);
    const int y = mcu / row, x = mcu % row;
    return uint32_t((y < top ? top : x < left ? y : y + 1) * row + left - mcu);
  }
};

// The part of an image that is kept for a window of `height` x `width` pixels, with the samples that smoothing needs
GPUFEED_BOTH Region region_of(Shape shape, int top, int left, int height, int width) {
  const int tall = 8 * shape.v, wide = 8 * shape.h, margin = shape.h * shape.v > 1 ? 1 : 0;
  const int first = (top > margin ? top - margin : 0) / tall, column = (left > margin ? left - margin : 0) / wide;
  const int bottom = top + height + margin < shape.height ? top + height + margin : shape.height;
  const int right = left + width + margin < shape.width ? left + width + margin : shape.width;
  return {first, column, (bottom + tall - 1) / tall - first, (right + wide - 1) / wide - column, shape.mcus_across()};
}

// A region as an image of its own. Its pixels are those of the whole image, except where smoothing crosses its border.
GPUFEED_BOTH Shape part_of(Shape shape, Region region) {
  const int height = shape.height - region.top * 8 * shape.v, width = shape.width - region.left * 8 * shape.h;
  const int tall = region.down * 8 * shape.v, wide = region.across * 8 * shape.h;
  return {height < tall ? height : tall, width < wide ? width : wide, shape.components, shape.h, shape.v};
}

// 32 bits from bit `shift` % 32 on
GPUFEED_BOTH uint32_t window(uint32_t high, uint32_t low, uint32_t shift) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(low, high, shift);
#else
  return uint32_t((uint64_t(high) << 32 | low) << shift % 32 >> 32);
#endif
}

GPUFEED_BOTH uint32_t big_endian(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, 0x0123);
#else
  return word >> 24 | (word >> 8 & 0xff00) | (word << 8 & 0xff0000) | word << 24;
#endif
}

// The entry of a code longer than LOOKUP_BITS; 0 if there is none.
GPUFEED_BOTH uint32_t longer_code(const Huffman& table, uint32_t bits) {
  if ((bits >> 16) < table.limit[FIRST_LONGER]) return 0;
  for (int length = LOOKUP_BITS + 1; length <= LONGEST; ++length) {
    const int place = length - LOOKUP_BITS - 1;
    if ((bits >> 16) < table.limit[place]) {
      return table.symbols[((bits >> (32 - length)) + table.offset[place]) & 255];
    }
  }
  return 0;
}

// Decodes one image's coded bytes, without stuffing, into coefficients: int16 (blocks, 64) in the order of the scan and in
// zigzag order. Only those that are not 0 are written. words: the bytes in memory order, aligned and zero-padded to a whole
// word. It neither reads nor writes out of bounds.
GPUFEED_BOTH uint8_t decode_entropy(const Huffman* tables, Shape shape, const uint32_t* words, uint32_t bytes,
                                    int16_t* coefficients) {
  const uint32_t count = (bytes + 3) / 4;
  const int luma = shape.luma_blocks(), each = shape.mcu_blocks();
  const int16_t* const end = coefficients + int64_t(shape.blocks()) * BLOCK;
  uint32_t at = 0, shift = 0;  // the first bit not used yet
  uint32_t high = count > 0 ? big_endian(words[0]) : 0;
  uint32_t low = count > 1 ? big_endian(words[1]) : 0;
  uint32_t ahead = count > 2 ? words[2] : 0;  // converted when needed, so that the load need not finish here
  int dc0 = 0, dc1 = 0, dc2 = 0;
  int block = 0;  // of its MCU
  int k = 0;      // the next coefficient of its block
  const Huffman* own = tables;
  // One code of any kind per iteration, so that threads of a warp stay together though their blocks differ in length.
  while (coefficients != end) {
    const Huffman& table = own[k != 0];
    uint32_t bits = window(high, low, shift);
    uint32_t entry = table.lookup[bits >> (32 - LOOKUP_BITS)];
    if (entry == 0) {
      entry = longer_code(table, bits);
      if (entry == 0) return at >= count ? CUT_OFF : BAD_CODE;
    }
    const uint32_t length = entry & 31, run = entry >> 5 & 15, size = entry >> 9 & 15;
    bits <<= length;
    // T.81, F.2.2.1: `size` bits; where the first of them is 0 the value is negative
    int value = int(bits >> 1 >> (31 - size)) - (int32_t(bits) < 0 ? 0 : (1 << size) - 1);
    shift += length + size;
    if (shift >= 32) {
      shift -= 32;
      high = low;
      low = big_endian(ahead);
      if (++at > count) return CUT_OFF;
      ahead = at + 2 < count ? words[at + 2] : 0;
    }
    if (k == 0) {
      const int component = block < luma ? 0 : block - luma + 1;
      value += component == 0 ? dc0 : component == 1 ? dc1 : dc2;
      if (component == 0) dc0 = value;
      if (component == 1) dc1 = value;
      if (component == 2) dc2 = value;
      if (value > MOST_DC || value < -MOST_DC - 1) return BAD_DC;
      coefficients[0] = int16_t(value);
      k = 1;
    } else if (size == 0) {
      k = run == 15 ? k + 16 : BLOCK;  // sixteen zeros, or the end of the block
      if (k > BLOCK) return BAD_RUN;
    } else {
      k += run;
      if (k >= BLOCK) return BAD_RUN;
      coefficients[k++] = int16_t(value);
    }
    if (k == BLOCK) {
      k = 0;
      coefficients += BLOCK;
      if (++block == each) block = 0;
      own = tables + (block < luma ? 0 : 2);
    }
  }
  const uint32_t used = at * 32 + shift;
  if (used > bytes * 8) return CUT_OFF;
  return bytes * 8 - used >= 8 ? LEFT_OVER : NO_FAULT;
}

// The place of a block of the scan in the planes of its image, which are contiguous: luma, then both chroma planes, each in
// whole MCUs. start: its first sample; pitch: samples per row.
struct Place {
  int component, start, pitch;
};

GPUFEED_BOTH Place place_of(Shape shape, int block) {
  const int each = shape.mcu_blocks(), across = shape.mcus_across();
  const int mcu = block / each, part = block - mcu * each;
  const int down = mcu / across, right = mcu - down * across;
  const int luma = shape.luma_blocks();
  if (part < luma) {
    const int y = part / shape.h, x = part - y * shape.h, pitch = across * shape.h * 8;
    return {0, (down * shape.v + y) * 8 * pitch + (right * shape.h + x) * 8, pitch};
  }
  const int component = part - luma + 1, pitch = across * 8;
  const int plane = across * shape.mcus_down() * BLOCK;  // samples of a colour
  return {component, plane * (luma + component - 1) + down * 8 * pitch + right * 8, pitch};
}

GPUFEED_BOTH bool too_large(int value) { return value > MOST_VALUE || value < -MOST_VALUE; }

// The inverse transform of eight values, scaled by 2^(13 - SHIFT) and rounded. Unsigned, so that values that are too large,
// which are a fault anyway, wrap around.
template <int SHIFT>
GPUFEED_BOTH void inverse_dct(int32_t (&x)[8]) {
  using U = uint32_t;
  const U x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3], x4 = x[4], x5 = x[5], x6 = x[6], x7 = x[7];
  // constants times 2^13; even part: a rotation by 3 pi / 8
  const U turn = (x2 + x6) * U(4433);
  const U even2 = turn - x6 * U(15137), even3 = turn + x2 * U(6270);
  const U even0 = (x0 + x4) << 13, even1 = (x0 - x4) << 13;
  const U sum0 = even0 + even3, sum3 = even0 - even3, sum1 = even1 + even2, sum2 = even1 - even2;
  // odd part
  const U both = (x7 + x3 + x5 + x1) * U(9633);
  const U near7 = (x7 + x1) * U(7373), near5 = (x5 + x3) * U(20995);
  const U far73 = both - (x7 + x3) * U(16069), far51 = both - (x5 + x1) * U(3196);
  const U odd0 = x7 * U(2446) - near7 + far73;
  const U odd1 = x5 * U(16819) - near5 + far51;
  const U odd2 = x3 * U(25172) - near5 + far73;
  const U odd3 = x1 * U(12299) - near7 + far51;
  constexpr U half = U(1) << (SHIFT - 1);
  x[0] = int32_t(sum0 + odd3 + half) >> SHIFT;
  x[7] = int32_t(sum0 - odd3 + half) >> SHIFT;
  x[1] = int32_t(sum1 + odd2 + half) >> SHIFT;
  x[6] = int32_t(sum1 - odd2 + half) >> SHIFT;
  x[2] = int32_t(sum2 + odd1 + half) >> SHIFT;
  x[5] = int32_t(sum2 - odd1 + half) >> SHIFT;
  x[3] = int32_t(sum3 + odd0 + half) >> SHIFT;
  x[4] = int32_t(sum3 - odd0 + half) >> SHIFT;
}

constexpr int COLUMN_SHIFT = 13 - 2, ROW_SHIFT = 13 + 2 + 3;

GPUFEED_BOTH int clamped(int value) { return value < 0 ? 0 : value > 255 ? 255 : value; }

GPUFEED_BOTH int within(int place, int count) { return place < 0 ? 0 : place >= count ? count - 1 : place; }

// Luma samples per chroma sample, as compile-time constants
template <int H_, int V_>
struct Sampling {
  static constexpr int H = H_, V = V_;
};

// Calls work(Sampling<H, V>()) for the sampling of a shape
template <class Work>
inline auto by_sampling(Shape shape, Work work) {
  if (shape.h == 4) return work(Sampling<4, 1>());
  if (shape.h == 2) return shape.v == 2 ? work(Sampling<2, 2>()) : work(Sampling<2, 1>());
  return shape.v == 2 ? work(Sampling<1, 2>()) : work(Sampling<1, 1>());
}

// Whether chroma is smoothed: with `fancy`, as in libjpeg-turbo, 4:2:2 and 4:2:0 with more than two samples per row, and
// 4:4:0.
GPUFEED_BOTH bool smooths(Shape shape, bool fancy) {
  return fancy && (shape.h == 2 ? shape.colour_width() > 2 : shape.h == 1 && shape.v == 2);
}

constexpr int SPAN = 8;                   // pixels of a row that are computed together, the first at a multiple of 8
constexpr int SPAN_WORDS = SPAN * 3 / 4;  // of 32 bits, as RGB

// Loads COUNT samples from a multiple of COUNT, in one access
template <int COUNT>
GPUFEED_BOTH void load(const uint8_t* from, int (&to)[COUNT]) {
  uint8_t bytes[COUNT];
  std::memcpy(bytes, __builtin_assume_aligned(from, COUNT), COUNT);
  for (int i = 0; i < COUNT; ++i) to[i] = bytes[i];
}

// One chroma component for the pixels of the span at (x, y); undefined beyond the right side
template <class Of>
GPUFEED_BOTH void colours_at(Shape shape, const uint8_t* plane, int pitch, int x, int y, bool smooth, int (&to)[SPAN]) {
  constexpr int H = Of::H, V = Of::V, COUNT = SPAN / H;
  const int cx = x / H, cy = y / V;
  const uint8_t* const near = plane + cy * pitch;
  int own[COUNT];
  load(near + cx, own);
  if (H * V == 1 || H == 4 || !smooth) {
    for (int i = 0; i < SPAN; ++i) to[i] = own[i / H];
    return;
  }
  const int width = (shape.width + H - 1) / H, height = (shape.height + V - 1) / V;  // samples that the image has
  const uint8_t* const far = plane + within(cy + (y % 2 ? 1 : -1), height) * pitch;
  if (V == 2) {
    int other[COUNT];
    load(far + cx, other);
    for (int i = 0; i < COUNT; ++i) own[i] = 3 * own[i] + other[i];
  }
  if (H == 1) {
    for (int i = 0; i < SPAN; ++i) to[i] = (own[i % COUNT] + (y % 2 ? 2 : 1)) >> 2;
    return;
  }
  const int before = within(cx - 1, width), behind = within(cx + COUNT, width);
  const int left = V == 2 ? 3 * near[before] + far[before] : near[before];
  const int right = V == 2 ? 3 * near[behind] + far[behind] : near[behind];
  // the last sample of the image is its own neighbour
  for (int i = 1; i < COUNT; ++i) own[i] = cx + i < width ? own[i] : own[i - 1];
  for (int i = 0; i < COUNT; ++i) {
    const int previous = i == 0 ? left : own[i - 1], next = i == COUNT - 1 ? right : own[i + 1];
    to[H * i % SPAN] = (3 * own[i] + previous + (V == 2 ? 8 : 1)) >> (2 * V);
    to[(H * i + 1) % SPAN] = (3 * own[i] + next + (V == 2 ? 7 : 2)) >> (2 * V);
  }
}

struct Rgb {
  int r, g, b;
};

// ITU-T T.871 (JFIF), with the weights times 2^16; a half is added before each shift
GPUFEED_BOTH Rgb rgb_of(int y, int cb, int cr) {
  const int level = y * 65536 + 32768;
  const int r = level + 91881 * cr - 91881 * 128, b = level + 116130 * cb - 116130 * 128;
  const int g = level - 22554 * cb - 46802 * cr + (22554 + 46802) * 128;
  return {clamped(r >> 16), clamped(g >> 16), clamped(b >> 16)};
}

// The span at (x, y) from the planes of an image, as bytes of RGB in little-endian words
template <class Of>
GPUFEED_BOTH void span_at(Shape shape, const uint8_t* planes, int x, int y, bool smooth, uint32_t (&words)[SPAN_WORDS]) {
  constexpr int H = Of::H, V = Of::V;
  const int across = (shape.width + 8 * H - 1) / (8 * H), down = (shape.height + 8 * V - 1) / (8 * V);
  const int plane = across * down * BLOCK;  // samples of a colour
  int level[SPAN], cb[SPAN], cr[SPAN];
  load(planes + y * across * H * 8 + x, level);
  const bool gray = shape.components == 1;
  if (!gray) {
    const uint8_t* const blue = planes + int64_t(plane) * (H * V);
    colours_at<Of>(shape, blue, across * 8, x, y, smooth, cb);
    colours_at<Of>(shape, blue + plane, across * 8, x, y, smooth, cr);
  }
  for (int i = 0; i < SPAN_WORDS; ++i) words[i] = 0;
#pragma unroll
  for (int i = 0; i < SPAN; ++i) {
    const Rgb pixel = gray ? Rgb{level[i], level[i], level[i]} : rgb_of(level[i], cb[i], cr[i]);
    const int value[3] = {pixel.r, pixel.g, pixel.b};
#pragma unroll
    for (int k = 0; k < 3; ++k) words[(3 * i + k) / 4] |= uint32_t(value[k]) << (8 * ((3 * i + k) % 4));
  }
}

}  // namespace gpufeed::jpeg
