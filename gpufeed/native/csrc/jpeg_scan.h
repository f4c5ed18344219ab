// Entropy decoding of one scan from any place in it, for threads that work side by side on one image.
//
// After S. T. Klein and Y. Wiseman, Parallel Huffman decoding with applications to JPEG files, The Computer Journal 46(5),
// 2003: a decoder that starts at a wrong bit soon falls into step with the right one. The bits of an interval (a scan, or
// what lies between two restart markers) are cut into subsequences. A few at a time are decoded from a guessed state, then each
// again from the end state of the one before it until no state changes. The first starts right, so that by induction all are
// right then. Sums of their blocks and of their DC differences tell where each of them writes. Of the few that begin with one
// guess, those behind the place where it has come right need not be decoded again.
#pragma once

#include "jpeg.h"

namespace gpufeed::jpeg {

constexpr uint32_t SUBSEQUENCE = 512;   // bits
constexpr uint32_t GROUP = 4;           // subsequences in succession that one thread decodes at first, from one guess
constexpr uint32_t MOST_ROUNDS = 256;   // in which subsequences may still change
constexpr uint32_t MOST_DC_SIZE = 11, MOST_AC_SIZE = 10;  // bits of a value of 8-bit samples (T.81, table F.2)
constexpr uint32_t HUFFMAN_BYTES = LONGEST + 256;         // of a table in a file: counts by length, then the symbols
constexpr uint32_t PADDING_WORDS = 4;   // of zeros behind an image's words, since the reader is ahead of the bits

// Which of a table's codes have which length (T.81, annex C); place 0 is not used.
struct Codes {
  uint32_t first[LONGEST + 1], end[LONGEST + 1];  // the first code of a length, and the one behind its last
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

// An entry of these tables: length | size << 5 | advance << 9, or 0 for bits that are no code and for a symbol that 8-bit
// samples do not have. advance: by how many coefficients it brings a block on; BLOCK if it ends the block. It stands in
// Huffman, whose entries are others for decode_entropy.
GPUFEED_BOTH uint16_t entry_of(uint8_t symbol, uint32_t length, bool dc) {
  const uint32_t run = dc ? 0 : symbol >> 4, size = dc ? symbol : symbol & 15;
  const uint32_t advance = dc || size > 0 || run == 15 ? run + 1 : BLOCK;
  return size > (dc ? MOST_DC_SIZE : MOST_AC_SIZE) ? 0 : uint16_t(length | size << 5 | advance << 9);
}

// For bits that are no code: one bit that ends a block. Its bit 16 is in no other entry.
constexpr uint32_t GUESSED_ENTRY = 1 | uint32_t(3 * BLOCK) << 9;

// Entry `place` of Huffman::lookup, as entry_of has it
GPUFEED_BOTH uint16_t lookup_entry(const Codes& codes, const uint8_t* symbols, uint32_t place, bool dc) {
  for (uint32_t length = 1; length <= LOOKUP_BITS; ++length) {
    const uint32_t code = place >> (LOOKUP_BITS - length);
    if (code < codes.end[length]) {
      return entry_of(symbols[(codes.before[length] + code - codes.first[length]) & 255], length, dc);
    }
  }
  return 0;
}

// The same of Huffman::symbols; 0 behind the last symbol
GPUFEED_BOTH uint16_t symbol_entry(const Codes& codes, const uint8_t* symbols, uint32_t place, bool dc) {
  for (uint32_t length = 1; length <= LONGEST; ++length) {
    if (place < codes.before[length] + codes.end[length] - codes.first[length]) {
      return entry_of(symbols[place], length, dc);
    }
  }
  return 0;
}

// What all AC codes take and do together that lie with their values in the LOOKUP_BITS bits `place`: bits | advance << 4 |
// 1 << 15 if the last ends the block, which counts as 1 of the advance. 0 if not even one does. table: filled already.
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

// Huffman's limit and offset, of codes longer than LOOKUP_BITS
GPUFEED_BOTH void fill_limits(const Codes& codes, Huffman& to) {
  for (int i = 0; i < 8; ++i) to.limit[i] = to.offset[i] = 0;
  to.limit[FIRST_LONGER] = uint16_t(codes.end[LOOKUP_BITS] << FIRST_LONGER);
  for (uint32_t length = LOOKUP_BITS + 1; length <= LONGEST; ++length) {
    to.limit[length - LOOKUP_BITS - 1] = uint16_t(codes.end[length] << (LONGEST - length));
    to.offset[length - LOOKUP_BITS - 1] = uint16_t(codes.before[length] - codes.first[length]);
  }
}

// Which bytes of a scan are data: not the 0 that follows 0xff, and not a restart marker. before and behind: the bytes
// on either side, 0 outside of the scan.
GPUFEED_BOTH bool is_restart(uint32_t byte) { return (byte & 0xf8) == 0xd0; }
GPUFEED_BOTH bool is_data(uint32_t before, uint32_t byte, uint32_t behind) {
  return before != 0xff && !(byte == 0xff && is_restart(behind));
}
GPUFEED_BOTH bool is_wrong_marker(uint32_t before, uint32_t byte) {
  return before == 0xff && byte != 0 && !is_restart(byte);
}

// Where a decoder stands in an interval: the next bit of the image, the next coefficient of its block, and its block of
// the MCU
struct Position {
  uint32_t bit, k, block;
};

// A position behind a subsequence in one word: bits beyond its end (less than 32), k and block. 0 is the guess, too: the
// first bit, at a block's and an MCU's beginning. It stands for the state behind a subsequence that needs more bits than
// there are, too. DOUBT beside it: codes that cannot be were met. Which fault that is, is found when coefficients are written.
constexpr uint32_t BLOCK_SHIFT = 11, DOUBT = 1 << 15, STATE = DOUBT - 1, WITHOUT_BLOCK = (1 << BLOCK_SHIFT) - 1;
GPUFEED_BOTH uint32_t packed(Position at, uint32_t end) {
  return at.bit < end ? 0 : (at.bit - end) | at.k << 5 | at.block << BLOCK_SHIFT;
}
GPUFEED_BOTH Position unpacked(uint32_t state, uint32_t begin) {
  return {begin + (state & 31), state >> 5 & 63, state >> BLOCK_SHIFT};
}

// How an image's intervals are cut into subsequences of `size` bits
struct Cuts {
  const uint32_t* intervals;    // (interval_count + 1) bytes where they begin, and where the last ends
  const uint32_t* first_spans;  // (interval_count) of each, its first subsequence
  const uint32_t* interval_of;  // of each subsequence; not read where there is one interval
  uint32_t interval_count, size;
};

GPUFEED_BOTH uint32_t spans_of(uint32_t bytes, uint32_t size) {
  return bytes == 0 ? 1 : uint32_t((uint64_t(bytes) * 8 + size - 1) / size);
}

// One subsequence: its bits, its interval's end, its interval and the first subsequence of that
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

// What an image's threads must know of its scan. words: its bytes without stuffing and markers, as they are in memory.
struct Scan {
  const Huffman* tables;  // as Tables has them
  const uint32_t* words;
  int luma, each;         // blocks of brightness, and all blocks, of an MCU
  const uint16_t* steps = nullptr;  // steps_entry of all places of both tables of AC; for sinks that guess
};

constexpr uint32_t STEPS = 1;  // whether sinks that guess take several codes of AC in a step

// Decodes codes that begin before bit `end` of an interval that ends at `limit`, or until sink.block() says that it has
// all it wants. Moves `at`. The sink gets every value: dc() gets differences and returns whether all is well; block() is
// called with whether an MCU ends, too.
// A sink that guesses goes on after codes that cannot be, which it meets until it has fallen into step; one fourth of the
// subsequences of photographs do. The fault says then that there were some. It only counts what AC codes are, so that those
// that lie in LOOKUP_BITS bits are one step, 1.5 codes of photographs in the mean. One step a turn, whatever it is: threads of
// a warp stay together though their blocks differ in length.
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
      fault = limit - bit < LONGEST ? CUT_OFF : BAD_CODE;  // what follows the interval decides nothing
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

// Blocks that a subsequence completes, and its sums of DC differences by component
struct Sums {
  uint32_t blocks, dc[3];  // unsigned, so that sums of what is a fault anyway wrap around

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

// The state behind a subsequence that begins in `state`, and DOUBT; `sums` becomes what it holds.
GPUFEED_BOTH uint32_t pass_over(const Scan& scan, const Span& span, uint32_t state, Sums& sums) {
  CountingSink sink;
  Position at = unpacked(state, span.begin);
  const uint8_t fault = decode_span(scan, at, span.end, span.limit, sink);
  sums = sink.sums;
  return packed(at, span.end) | (fault != NO_FAULT ? DOUBT : 0);
}

// A block of coefficients becomes 0.
GPUFEED_BOTH void clear_block(int16_t* block) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int i = 0; i < BLOCK / 8; ++i) reinterpret_cast<uint4*>(block)[i] = make_uint4(0, 0, 0, 0);
#else
  std::memset(block, 0, BLOCK * sizeof(*block));
#endif
}

// Writes coefficients of the blocks that are kept, in zigzag order. A block that begins is cleared first, but for `open`:
// that one ends in another subsequence, which may have written to it already.
struct WritingSink {
  static constexpr bool GUESSES = false;
  const Region& region;
  int16_t* to;    // of the present block, or of the next that is kept
  int16_t* open;
  uint32_t left;  // blocks to come, with the present one
  uint32_t run;   // MCUs to come, with the present one, until `kept` changes
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

// The blocks of one interval: the number of its first in the image, how many it has, and how many up to the last that is
// kept. coefficients: of the image's region; each: blocks of an MCU.
struct Blocks {
  const Region& region;
  int16_t* coefficients;
  uint32_t each, first, count, needed;

  // Where one begins that is kept; one that is not, where the next begins. number: in the interval
  GPUFEED_BOTH int16_t* place(uint32_t number) const {
    const uint32_t block = first + number, mcu = block / each;
    const uint32_t part = region.has(int(mcu)) ? block - mcu * each : 0;
    return coefficients + (int64_t(region.before(int(mcu))) * each + part) * BLOCK;
  }

  // The block in which a subsequence ends in the middle, by its end and the sums behind it; null if it is not kept
  GPUFEED_BOTH int16_t* open(uint32_t end_state, const Sums& behind) const {
    const bool found = unpacked(end_state, 0).k > 0 && behind.blocks < needed;
    return found && region.has(int((first + behind.blocks) / each)) ? place(behind.blocks) : nullptr;
  }

  // Whether a subsequence must be written: it has what is kept, codes in doubt, or the end of what is needed. last: it
  // is the last of its interval.
  GPUFEED_BOTH bool written(uint32_t end_state, uint32_t before, uint32_t behind, bool last) const {
    if (before >= needed) return false;
    if (last || (end_state & DOUBT) != 0 || behind >= needed) return true;
    const uint32_t end = behind + (unpacked(end_state, 0).k > 0 ? 1 : 0);
    return end > before &&
           region.before(int((first + end - 1) / each) + 1) > region.before(int((first + before) / each));
  }
};

// Blocks of interval `number` of an image, with `restart` MCUs each
GPUFEED_BOTH Blocks blocks_of(Shape shape, const Region& region, uint32_t restart, uint32_t number, int16_t* coefficients) {
  const uint32_t each = shape.mcu_blocks(), first = number * restart * each, all = shape.blocks() - first;
  const uint32_t count = all < restart * each ? all : restart * each, end = region.end() * each;
  return {region, coefficients, each, first, count, end <= first ? 0 : end - first < count ? end - first : count};
}

// Writes what a subsequence holds. before: the sums of those before it in its interval; open: what Blocks::open says,
// cleared. Returns what is wrong with it, which counts only if nothing is before it. Nothing behind what is needed is
// wrong, and no value of what is not kept.
GPUFEED_BOTH uint8_t write_span(const Scan& scan, const Span& span, uint32_t state, const Sums& before,
                                const Blocks& blocks, int16_t* open) {
  if (before.blocks >= blocks.needed) return NO_FAULT;  // padding, or behind the window
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
