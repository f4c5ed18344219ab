// Entropy decoding of one scan from any place in it, for threads that work on one image in parallel.
//
// After S. T. Klein and Y. Wiseman, Parallel Huffman decoding with applications to JPEG files, The Computer Journal 46(5),
// 2003: a decoder that starts at a wrong bit soon synchronises with the correct one. The bits of an interval (a scan, or
// the part between two restart markers) are split into subsequences. Groups of them are decoded from a guessed state. Then
// each is decoded again from the end state of the one before it, until no state changes. The first starts correctly, so by
// induction all are correct then. Prefix sums of their blocks and DC differences tell where each one writes. In a group,
// subsequences after the point of synchronisation need not be decoded again.
#pragma once

#include "jpeg.h"

namespace gpufeed::jpeg {

constexpr uint32_t SUBSEQUENCE = 512;   // bits
constexpr uint32_t GROUP = 4;           // successive subsequences that one thread first decodes from one guess
constexpr uint32_t MOST_ROUNDS = 256;   // in which subsequences may still change
constexpr uint32_t MOST_DC_SIZE = 11, MOST_AC_SIZE = 10;  // bits of a value of 8-bit samples (T.81, table F.2)
constexpr uint32_t HUFFMAN_BYTES = LONGEST + 256;         // of a table in a file: counts by length, then the symbols
constexpr uint32_t PADDING_WORDS = 4;   // of zeros after an image's words, since the reader prefetches

// The codes of a table by length (T.81, annex C); index 0 is not used.
struct Codes {
  uint32_t first[LONGEST + 1], end[LONGEST + 1];  // the first code of a length, and the one after its last
  uint32_t before[LONGEST + 1];                   // symbols of shorter codes
};

GPUFEED_BOTH void find_codes(const uint8_t* counts, Codes& to) {
  uint32_t code = 0, before = 0;
  to.first[0] = to.end[0] = to.before[0] = 0;
  for (int length = 1; length <= LONGEST; ++length) {
    to.first[length] = code;
    to.before[length] = before;
    to.end[length] = code + counts[length - 1];
    before += counts[length - 1];
    code = to.end[length] << 1;
  }
}

// An entry of these tables: length | size << 5 | advance << 9, or 0 for bits that are no code, and for a symbol that 8-bit
// samples cannot have. advance: by how many coefficients a block advances; BLOCK if it ends the block. It is stored in
// Huffman, whose entries have another form for decode_entropy.
GPUFEED_BOTH uint16_t entry_of(uint8_t symbol, uint32_t length, bool dc) {
  const uint32_t run = dc ? 0 : symbol >> 4, size = dc ? symbol : symbol & 15;
  const uint32_t advance = dc || size > 0 || run == 15 ? run + 1 : BLOCK;
  return size > (dc ? MOST_DC_SIZE : MOST_AC_SIZE) ? 0 : uint16_t(length | size << 5 | advance << 9);
}

// For bits that are no code: one bit that ends a block. No other entry has bit 16.
constexpr uint32_t GUESSED_ENTRY = 1 | uint32_t(3 * BLOCK) << 9;

// Entry `place` of Huffman::lookup, by entry_of
GPUFEED_BOTH uint16_t lookup_entry(const Codes& codes, const uint8_t* symbols, uint32_t place, bool dc) {
  for (uint32_t length = 1; length <= LOOKUP_BITS; ++length) {
    const uint32_t code = place >> (LOOKUP_BITS - length);
    if (code < codes.end[length]) {
      return entry_of(symbols[(codes.before[length] + code - codes.first[length]) & 255], length, dc);
    }
  }
  return 0;
}

// The same for Huffman::symbols; 0 after the last symbol
GPUFEED_BOTH uint16_t symbol_entry(const Codes& codes, const uint8_t* symbols, uint32_t place, bool dc) {
  for (uint32_t length = 1; length <= LONGEST; ++length) {
    if (place < codes.before[length] + codes.end[length] - codes.first[length]) {
      return entry_of(symbols[place], length, dc);
    }
  }
  return 0;
}

// The combined effect of all AC codes that lie, with their values, in the LOOKUP_BITS bits `place`: bits | advance << 4 |
// 1 << 15 if the last ends the block, which counts as an advance of 1. 0 if not even one code fits. table: already filled.
GPUFEED_BOTH uint16_t steps_entry(const Huffman& table, uint32_t place) {
  uint32_t bits = 0, advance = 0;
  while (bits < LOOKUP_BITS) {
    const uint32_t entry = table.lookup[place << bits & ((1 << LOOKUP_BITS) - 1)], own = (entry & 31) + (entry >> 5 & 15);
    const bool ends = entry >> 9 == BLOCK;
    const uint32_t step = ends ? 1 : entry >> 9;
    if (entry == 0 || bits + own > LOOKUP_BITS || advance + step > BLOCK) break;
    bits += own;
    advance += step;
    if (ends) return uint16_t(bits | advance << 4 | 1 << 15);
  }
  return uint16_t(bits | advance << 4);
}

// Fills Huffman's limit and offset, for codes longer than LOOKUP_BITS
GPUFEED_BOTH void fill_limits(const Codes& codes, Huffman& to) {
  for (int i = 0; i < 8; ++i) to.limit[i] = to.offset[i] = 0;
  to.limit[FIRST_LONGER] = uint16_t(codes.end[LOOKUP_BITS] << FIRST_LONGER);
  for (uint32_t length = LOOKUP_BITS + 1; length <= LONGEST; ++length) {
    to.limit[length - LOOKUP_BITS - 1] = uint16_t(codes.end[length] << (LONGEST - length));
    to.offset[length - LOOKUP_BITS - 1] = uint16_t(codes.before[length] - codes.first[length]);
  }
}

// Whether a byte of a scan is data: not the 0 after 0xff, and not part of a restart marker. before and behind: the
// adjacent bytes, 0 outside of the scan.
GPUFEED_BOTH bool is_restart(uint32_t byte) { return (byte & 0xf8) == 0xd0; }
GPUFEED_BOTH bool is_data(uint32_t before, uint32_t byte, uint32_t behind) {
  return before != 0xff && !(byte == 0xff && is_restart(behind));
}
GPUFEED_BOTH bool is_wrong_marker(uint32_t before, uint32_t byte) {
  return before == 0xff && byte != 0 && !is_restart(byte);
}

// The position of a decoder: the next bit of the image, the next coefficient of its block, and its block of the MCU
struct Position {
  uint32_t bit, k, block;
};

// A position after a subsequence in one word: bits beyond its end (less than 32), k and block. 0 is also the guess: the
// first bit, at the beginning of a block and an MCU. It is also the state after a subsequence that needs more bits than
// there are. DOUBT is set if invalid codes were met; writing the coefficients finds which fault that is.
constexpr uint32_t BLOCK_SHIFT = 11, DOUBT = 1 << 15, STATE = DOUBT - 1, WITHOUT_BLOCK = (1 << BLOCK_SHIFT) - 1;
GPUFEED_BOTH uint32_t packed(Position at, uint32_t end) {
  return at.bit < end ? 0 : (at.bit - end) | at.k << 5 | at.block << BLOCK_SHIFT;
}
GPUFEED_BOTH Position unpacked(uint32_t state, uint32_t begin) {
  return {begin + (state & 31), state >> 5 & 63, state >> BLOCK_SHIFT};
}

// How an image's intervals are split into subsequences of `size` bits
struct Cuts {
  const uint32_t* intervals;    // (interval_count + 1) byte where each begins, and where the last ends
  const uint32_t* first_spans;  // (interval_count) the first subsequence of each
  const uint32_t* interval_of;  // of each subsequence; not read with one interval
  uint32_t interval_count, size;
};

GPUFEED_BOTH uint32_t spans_of(uint32_t bytes, uint32_t size) {
  return bytes == 0 ? 1 : uint32_t((uint64_t(bytes) * 8 + size - 1) / size);
}

// One subsequence: its bits, its interval's end, its interval and that one's first subsequence
struct Span {
  uint32_t begin, end, limit, interval, first;
};

GPUFEED_BOTH Span span_of(const Cuts& cuts, uint32_t number) {
  Span span{};
  if (cuts.interval_count > 1) {
    span.interval = cuts.interval_of[number];
    span.first = cuts.first_spans[span.interval];
  }
  span.limit = cuts.intervals[span.interval + 1] * 8;
  span.begin = cuts.intervals[span.interval] * 8 + (number - span.first) * cuts.size;
  span.end = span.limit - span.begin < cuts.size ? span.limit : span.begin + cuts.size;
  return span;
}

// The scan of an image, for all of its threads. words: its bytes without stuffing and markers, in memory order.
struct Scan {
  const Huffman* tables;  // as Tables has them
  const uint32_t* words;
  int luma, each;         // luma blocks, and all blocks, of an MCU
  const uint16_t* steps = nullptr;  // steps_entry of all places of both AC tables; for guessing sinks
};

constexpr uint32_t STEPS = 1;  // whether guessing sinks take several AC codes per step

// Decodes codes that begin before bit `end` of an interval that ends at `limit`, or until sink.block() returns that it has
// enough. Moves `at`. The sink gets every value: dc() gets differences and returns whether they are valid; block() also
// gets whether an MCU ends.
// A guessing sink continues after invalid codes, which occur until it has synchronised, in a fourth of the subsequences of
// photographs. The fault then tells that there were some. It only counts AC codes, so that all codes in LOOKUP_BITS bits are
// one step, on average 1.5 codes in photographs. Each iteration is one step of any kind, so that threads of a warp stay
// together though their blocks differ in length.
template <class Sink>
GPUFEED_BOTH uint8_t decode_span(const Scan& scan, Position& at, uint32_t end, uint32_t limit, Sink& sink) {
  uint32_t word = at.bit / 32, bit = at.bit, k = at.k, met = 0;
  int block = int(at.block);
  uint32_t high = big_endian(scan.words[word]), low = big_endian(scan.words[word + 1]);
  uint32_t ahead = scan.words[word + 2];
  const Huffman* own = scan.tables + (block < scan.luma ? 0 : 2);
  const uint16_t* steps = nullptr;
  if (Sink::GUESSES) steps = scan.steps + (block < scan.luma ? 0 : 1 << LOOKUP_BITS);
  uint8_t fault = NO_FAULT;
  while (bit < end) {
    const Huffman& table = own[k != 0];
    uint32_t bits = window(high, low, bit);
    const uint32_t place = bits >> (32 - LOOKUP_BITS);
    uint32_t entry = table.lookup[place];
    if (entry == 0) entry = longer_code(table, bits);
    if (Sink::GUESSES) {
      if (entry == 0) entry = GUESSED_ENTRY;
      met |= entry;
    } else if (entry == 0) {
      fault = limit - bit < LONGEST ? CUT_OFF : BAD_CODE;  // bits after the interval do not count
      break;
    }
    const uint32_t length = entry & 31, size = entry >> 5 & 15, advance = entry >> 9;
    bits <<= length;
    // T.81, F.2.2.1: `size` bits; where the first of them is 0 the value is negative, and their complement is its amount
    const uint32_t positive = uint32_t(int32_t(bits) >> 31);  // all ones if it is
    const int value = int((window(0, ~(bits ^ positive), size) ^ ~positive) + positive + 1);
    uint32_t used = length + size, next = k + advance;
    if (Sink::GUESSES && STEPS != 0 && k != 0 && bit + LOOKUP_BITS <= end) {
      const uint32_t found = steps[place], most = k + (found >> 4 & 127);
      if (found != 0 && most <= BLOCK) {
        used = found & 15;
        next = found >> 15 != 0 ? BLOCK : most;
      }
    }
    bit += used;
    if (!Sink::GUESSES && bit > limit) break;
    if (bit / 32 != word) {
      high = low;
      low = big_endian(ahead);
      ahead = scan.words[++word + 2];
    }
    if (k == 0) {
      if (!sink.dc(block < scan.luma ? 0 : block - scan.luma + 1, value)) {
        fault = BAD_DC;
        break;
      }
    } else if (size > 0 && k + advance <= BLOCK) {
      sink.ac(k + advance - 1, value);
    }
    k = next;
    if (k >= BLOCK) {
      if (k > BLOCK && advance < BLOCK) {
        if (!Sink::GUESSES) {
          fault = BAD_RUN;
          break;
        }
        met = GUESSED_ENTRY;
      }
      k = 0;
      if (++block == scan.each) block = 0;
      own = scan.tables + (block < scan.luma ? 0 : 2);
      if (Sink::GUESSES) steps = scan.steps + (block < scan.luma ? 0 : 1 << LOOKUP_BITS);
      if (sink.block(block == 0)) break;
    }
  }
  if (fault == NO_FAULT && bit > limit) fault = CUT_OFF;
  at = {fault == NO_FAULT ? bit : 0, k, uint32_t(block)};
  return fault == NO_FAULT && met >> 16 != 0 ? BAD_CODE : fault;
}

// The blocks that a subsequence completes, and its sums of DC differences by component
struct Sums {
  uint32_t blocks, dc[3];  // unsigned, so that sums that are a fault anyway wrap around

  GPUFEED_BOTH void add(const Sums& other) {
    blocks += other.blocks;
    for (int i = 0; i < 3; ++i) dc[i] += other.dc[i];
  }
  GPUFEED_BOTH Sums minus(const Sums& other) const {
    return {blocks - other.blocks, {dc[0] - other.dc[0], dc[1] - other.dc[1], dc[2] - other.dc[2]}};
  }
};

struct CountingSink {
  static constexpr bool GUESSES = true;
  Sums sums{};

  GPUFEED_BOTH bool dc(int component, int value) {
    if (component == 0) sums.dc[0] += uint32_t(value);
    if (component == 1) sums.dc[1] += uint32_t(value);
    if (component == 2) sums.dc[2] += uint32_t(value);
    return true;
  }
  GPUFEED_BOTH void ac(uint32_t, int) {}
  GPUFEED_BOTH bool block(bool) {
    ++sums.blocks;
    return false;
  }
};

// Returns the state after a subsequence that begins in `state`, and DOUBT; `sums` becomes its sums.
GPUFEED_BOTH uint32_t pass_over(const Scan& scan, const Span& span, uint32_t state, Sums& sums) {
  CountingSink sink;
  Position at = unpacked(state, span.begin);
  const uint8_t fault = decode_span(scan, at, span.end, span.limit, sink);
  sums = sink.sums;
  return packed(at, span.end) | (fault != NO_FAULT ? DOUBT : 0);
}

// Sets a block of coefficients to 0.
GPUFEED_BOTH void clear_block(int16_t* block) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int i = 0; i < BLOCK / 8; ++i) reinterpret_cast<uint4*>(block)[i] = make_uint4(0, 0, 0, 0);
#else
  std::memset(block, 0, BLOCK * sizeof(*block));
#endif
}

// Writes coefficients of the blocks that are kept, in zigzag order. A new block is cleared first, except `open`, which ends
// in another subsequence that may already have written to it.
struct WritingSink {
  static constexpr bool GUESSES = false;
  const Region& region;
  int16_t* to;    // of the present block, or of the next one that is kept
  int16_t* open;
  uint32_t left;  // blocks to come, including the present one
  uint32_t run;   // MCUs to come, including the present one, until `kept` changes
  bool kept;
  uint32_t means[3];

  GPUFEED_BOTH bool dc(int component, int difference) {
    uint32_t sum = uint32_t(difference) + (component == 0 ? means[0] : component == 1 ? means[1] : means[2]);
    if (component == 0) means[0] = sum;
    if (component == 1) means[1] = sum;
    if (component == 2) means[2] = sum;
    if (!kept) return true;
    const int value = int(sum);
    if (value > MOST_DC || value < -MOST_DC - 1) return false;
    if (to != open) clear_block(to);
    to[0] = int16_t(value);
    return true;
  }
  GPUFEED_BOTH void ac(uint32_t k, int value) {
    if (kept) to[k] = int16_t(value);
  }
  GPUFEED_BOTH bool block(bool whole) {
    if (kept) to += BLOCK;
    if (whole && --run == 0) {
      kept = !kept;
      run = kept ? region.stretch() : region.gap();
    }
    return --left == 0;
  }
};

// The blocks of one interval: the number of its first block in the image, how many it has, and how many up to the last one
// that is kept. coefficients: of the image's region; each: blocks per MCU.
struct Blocks {
  const Region& region;
  int16_t* coefficients;
  uint32_t each, first, count, needed;

  // Where a block begins if it is kept, else where the next kept one begins. number: in the interval
  GPUFEED_BOTH int16_t* place(uint32_t number) const {
    const uint32_t block = first + number, mcu = block / each;
    const uint32_t part = region.has(int(mcu)) ? block - mcu * each : 0;
    return coefficients + (int64_t(region.before(int(mcu))) * each + part) * BLOCK;
  }

  // The block that a subsequence ends inside of, by its end state and the sums after it; null if it is not kept
  GPUFEED_BOTH int16_t* open(uint32_t end_state, const Sums& behind) const {
    const bool found = unpacked(end_state, 0).k > 0 && behind.blocks < needed;
    return found && region.has(int((first + behind.blocks) / each)) ? place(behind.blocks) : nullptr;
  }

  // Whether a subsequence must be written: it has kept blocks, invalid codes, or the end of what is needed. last: whether
  // it is the last of its interval.
  GPUFEED_BOTH bool written(uint32_t end_state, uint32_t before, uint32_t behind, bool last) const {
    if (before >= needed) return false;
    if (last || (end_state & DOUBT) != 0 || behind >= needed) return true;
    const uint32_t end = behind + (unpacked(end_state, 0).k > 0 ? 1 : 0);
    return end > before &&
           region.before(int((first + end - 1) / each) + 1) > region.before(int((first + before) / each));
  }
};

// The blocks of interval `number` of an image, with `restart` MCUs each
GPUFEED_BOTH Blocks blocks_of(Shape shape, const Region& region, uint32_t restart, uint32_t number, int16_t* coefficients) {
  const uint32_t each = shape.mcu_blocks(), first = number * restart * each, all = shape.blocks() - first;
  const uint32_t count = all < restart * each ? all : restart * each, end = region.end() * each;
  return {region, coefficients, each, first, count, end <= first ? 0 : end - first < count ? end - first : count};
}

// Writes the blocks of a subsequence. before: the sums before it in its interval; open: from Blocks::open, cleared. Returns
// its fault, which counts only if no earlier subsequence has one. Codes after what is needed, and values of blocks that are
// not kept, are never faults.
GPUFEED_BOTH uint8_t write_span(const Scan& scan, const Span& span, uint32_t state, const Sums& before,
                                const Blocks& blocks, int16_t* open) {
  if (before.blocks >= blocks.needed) return NO_FAULT;  // padding, or after the window
  const int mcu = int((blocks.first + before.blocks) / blocks.each);
  WritingSink sink{blocks.region,
                   blocks.place(before.blocks),
                   open,
                   blocks.needed - before.blocks,
                   blocks.region.run(mcu),
                   blocks.region.has(mcu),
                   {before.dc[0], before.dc[1], before.dc[2]}};
  Position at = unpacked(state, span.begin);
  const uint8_t fault = decode_span(scan, at, span.end, span.limit, sink);
  if (fault != NO_FAULT) return fault;
  if (sink.left == 0) return blocks.needed == blocks.count && span.limit - at.bit >= 8 ? LEFT_OVER : NO_FAULT;
  return span.end == span.limit ? CUT_OFF : NO_FAULT;
}

}  // namespace gpufeed::jpeg
