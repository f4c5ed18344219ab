// Any mixture of whole baseline JPEGs in three kernels: entropy decoding (a thread block per image, a thread per
// subsequence of its bits, see jpeg_scan.h), inverse DCT, and upsampling and colour (both a thread block per tile).

#include "jpeg_dct.cuh"
#include "jpeg_files.h"

namespace gpufeed::jpeg {
namespace {

constexpr uint32_t WARP = 32;
constexpr unsigned ALL = 0xffffffffu;
constexpr uint32_t SCAN_THREADS = 512;
constexpr uint32_t SCAN_BLOCKS = 3;  // per multiprocessor, at least
constexpr uint32_t SCAN_WARPS = SCAN_THREADS / WARP;
static_assert(SCAN_WARPS >= 4, "a warp a table");
constexpr uint32_t LOADED = 16;  // bytes per load of a thread

// Shared memory of the threads of an image
struct Shared {
  alignas(16) Huffman huffman[4];
  uint16_t steps[2][1 << LOOKUP_BITS];  // see Scan
  Codes codes[4];
  uint8_t tables[4][HUFFMAN_BYTES];
  Region region;  // of the image: saves registers
  uint32_t totals[SCAN_WARPS];
  uint32_t counts[2];  // of subsequences to decode again, in this round and in the next
  uint32_t wrong;  // the first faulty subsequence << 8 | its fault
};

// Returns the sum of `value` over all earlier threads; `total` becomes that of all threads. The whole block must call it.
__device__ uint32_t sum_before(uint32_t value, uint32_t* totals, uint32_t& total) {
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  uint32_t sum = value;
#pragma unroll
  for (uint32_t step = 1; step < WARP; step *= 2) {
    const uint32_t other = __shfl_up_sync(ALL, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // all threads have read the previous call's totals
  if (lane == WARP - 1) totals[warp] = sum;
  __syncthreads();
  uint32_t before = 0;
  total = 0;
#pragma unroll
  for (uint32_t i = 0; i < SCAN_WARPS; ++i) {
    const uint32_t other = totals[i];
    if (i < warp) before += other;
    total += other;
  }
  return before + sum - value;
}

// Expands the Huffman tables of an image in shared memory. Any bytes are safe: nothing else is written.
__device__ void expand_tables(const Files& files, const Image& image, Shared& shared) {
  const uint32_t tables = image.shape.components == 3 ? 4 : 2;
  for (uint32_t i = threadIdx.x; i < tables * HUFFMAN_BYTES; i += SCAN_THREADS) {
    const uint32_t table = i / HUFFMAN_BYTES, place = i % HUFFMAN_BYTES;
    const int64_t from = image.huffman[table] + place;
    shared.tables[table][place] = from < files.bytes ? files.data[from] : 0;
  }
  __syncthreads();
  if (threadIdx.x % WARP == 0 && threadIdx.x / WARP < tables) {
    const uint32_t table = threadIdx.x / WARP;
    find_codes(shared.tables[table], shared.codes[table]);
    fill_limits(shared.codes[table], shared.huffman[table]);
  }
  __syncthreads();
  for (uint32_t table = 0; table < tables; ++table) {
    const uint8_t* const symbols = shared.tables[table] + LONGEST;
    const bool dc = table % 2 == 0;
    for (uint32_t i = threadIdx.x; i < 1 << LOOKUP_BITS; i += SCAN_THREADS) {
      shared.huffman[table].lookup[i] = lookup_entry(shared.codes[table], symbols, i, dc);
    }
    for (uint32_t i = threadIdx.x; i < 256; i += SCAN_THREADS) {
      shared.huffman[table].symbols[i] = symbol_entry(shared.codes[table], symbols, i, dc);
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < (tables / 2) << LOOKUP_BITS; i += SCAN_THREADS) {
    const uint32_t table = i >> LOOKUP_BITS, place = i & ((1 << LOOKUP_BITS) - 1);
    shared.steps[table][place] = steps_entry(shared.huffman[2 * table + 1], place);
  }
}

// Loads bytes place to place + LOADED of a scan; 0 beyond its end
__device__ void load_bytes(const uint8_t* from, uint32_t bytes, uint32_t place, uint8_t (&to)[LOADED]) {
  if (place + LOADED <= bytes && reinterpret_cast<uintptr_t>(from + place) % LOADED == 0) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from + place);
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < LOADED; ++i) to[i] = place + i < bytes ? from[place + i] : 0;
}

// Writes the scan without stuffing and restart markers, and where its intervals begin; returns its fault. See unstuff_scan.
__device__ uint8_t unstuff(const uint8_t* from, const Image& image, uint32_t* words, uint32_t* intervals, Shared& shared) {
  uint8_t* const to = reinterpret_cast<uint8_t*>(words);
  const uint32_t bytes = image.bytes;
  // threads begin at multiples of LOADED, the first at the scan itself
  const uint32_t lead = reinterpret_cast<uintptr_t>(from) % LOADED;
  uint32_t written = 0, markers = 0;
  bool marker = false, order = true;
  for (uint32_t base = 0; base < bytes + lead; base += SCAN_THREADS * LOADED) {
    const uint32_t shifted = base + threadIdx.x * LOADED;
    const uint32_t start = shifted < lead ? 0 : shifted - lead;
    const uint32_t end = min(bytes, max(shifted + LOADED, lead) - lead), count = end > start ? end - start : 0;
    alignas(16) uint8_t byte[LOADED];
    load_bytes(from, end, start, byte);
    const uint32_t left = count > 0 && start > 0 ? from[start - 1] : 0;
    const uint32_t right = count > 0 && end < bytes ? from[end] : 0;
    uint32_t kept = 0, found = 0;  // one bit per byte
#pragma unroll
    for (uint32_t i = 0; i < LOADED; ++i) {
      const uint32_t before = i == 0 ? left : byte[i > 0 ? i - 1 : 0];
      const uint32_t behind = i + 1 >= count ? right : byte[i + 1 < LOADED ? i + 1 : i];
      if (i < count) {
        marker |= is_wrong_marker(before, byte[i]);
        if (is_data(before, byte[i], behind)) kept |= 1u << i;
        if (before == 0xff && is_restart(byte[i])) found |= 1u << i;
      }
    }
    uint32_t total;
    const uint32_t sum = sum_before(__popc(kept) | __popc(found) << 16, shared.totals, total);
    const uint32_t place = written + (sum & 0xffff);
#pragma unroll
    for (uint32_t i = 0; i < LOADED; ++i) {
      if (kept >> i & 1) to[place + __popc(kept & ((1u << i) - 1))] = byte[i];
    }
    for (uint32_t left_over = found, number = markers + (sum >> 16); left_over != 0; left_over &= left_over - 1, ++number) {
      const uint32_t i = __ffs(left_over) - 1;
      order &= (from[start + i] & 7) == (number & 7);
      if (number + 1 < image.interval_count) intervals[number + 1] = place + __popc(kept & ((1u << i) - 1));
    }
    written += total & 0xffff;
    markers += total >> 16;
  }
  if (threadIdx.x == 0) {
    intervals[0] = 0;
    intervals[image.interval_count] = written;
    marker |= bytes > 0 && from[bytes - 1] == 0xff;
  }
  const uint32_t filled = ((written + 3) / 4 + PADDING_WORDS) * 4;
  for (uint32_t i = written + threadIdx.x; i < filled; i += SCAN_THREADS) to[i] = 0;
  const bool wrong_marker = __syncthreads_or(marker), wrong_order = __syncthreads_or(!order);
  if (wrong_marker) return BAD_MARKER;
  return wrong_order || markers + 1 != image.interval_count ? BAD_RESTART : NO_FAULT;
}

// Numbers the subsequences of all intervals, and returns how many there are.
__device__ uint32_t cut_intervals(const Cuts& cuts, uint32_t* first_spans, uint32_t* interval_of, Shared& shared) {
  if (cuts.interval_count == 1) return spans_of(cuts.intervals[1], cuts.size);
  uint32_t spans = 0;
  for (uint32_t base = 0; base < cuts.interval_count; base += SCAN_THREADS) {
    const uint32_t interval = base + threadIdx.x;
    const bool inside = interval < cuts.interval_count;
    const uint32_t count = inside ? spans_of(cuts.intervals[interval + 1] - cuts.intervals[interval], cuts.size) : 0;
    uint32_t total;
    const uint32_t first = spans + sum_before(count, shared.totals, total);
    if (inside) first_spans[interval] = first;
    for (uint32_t i = 0; i < count; ++i) interval_of[first + i] = interval;
    spans += total;
  }
  __syncthreads();
  return spans;
}

// Decodes subsequences `from` to `spans` until each begins where the one before it ends; returns false after too many
// rounds. A round reads only results of the previous one, so that the number of rounds is deterministic, and finds the
// work of the next. known: the bits of a state that decide how codes are read. Subsequences before `from` already agree.
__device__ bool synchronise(const Scan& scan, const Cuts& cuts, uint32_t known, uint32_t from, uint32_t spans,
                            uint32_t* starts, uint32_t* ends, uint32_t* const (&changed)[2], Sums* sums, Shared& shared) {
  for (uint32_t group = from + threadIdx.x * GROUP; group < spans; group += SCAN_THREADS * GROUP) {
    uint32_t state = 0;
    for (uint32_t i = group; i < min(group + GROUP, spans); ++i) {
      const Span span = span_of(cuts, i);
      if (i == span.first) state = 0;
      starts[i] = state;
      Sums own;
      ends[i] = pass_over(scan, span, state, own) & known;
      sums[i] = own;
      state = ends[i] & STATE;
    }
  }
  if (threadIdx.x == 0) shared.counts[0] = 0;
  __syncthreads();
  for (uint32_t i = from + threadIdx.x; i < spans; i += SCAN_THREADS) {
    if (i != span_of(cuts, i).first && starts[i] != (ends[i - 1] & STATE)) {
      changed[0][atomicAdd(&shared.counts[0], 1u)] = i;  // in any order: they are independent
    }
  }
  for (uint32_t round = 0;; ++round) {
    __syncthreads();
    const uint32_t* const list = changed[round % 2];
    const uint32_t count = shared.counts[round % 2];
    if (count == 0 || round == MOST_ROUNDS) return count == 0;
    if (threadIdx.x == 0) shared.counts[1 - round % 2] = 0;
    for (uint32_t place = threadIdx.x; place < count; place += SCAN_THREADS) {
      starts[list[place]] = ends[list[place] - 1] & STATE;
    }
    __syncthreads();
    for (uint32_t place = threadIdx.x; place < count; place += SCAN_THREADS) {
      const uint32_t i = list[place];
      const Span span = span_of(cuts, i);
      Sums own;
      const uint32_t end = pass_over(scan, span, starts[i], own) & known;
      ends[i] = end;
      sums[i] = own;
      if (span.end != span.limit && i + 1 < spans && starts[i + 1] != (end & STATE)) {
        changed[1 - round % 2][atomicAdd(&shared.counts[1 - round % 2], 1u)] = i + 1;
      }
    }
  }
}

// Decodes all subsequences up to the last needed one, to which `spans` is set. The end of a window is estimated by the
// mean bits per MCU, plus a twelfth; if that is too little, all subsequences are decoded.
__device__ bool synchronise_needed(const Scan& scan, const Cuts& cuts, uint32_t known, const Image& image, uint32_t& spans,
                                   uint32_t* starts, uint32_t* ends, uint32_t* const (&changed)[2], Sums* sums, Shared& shared) {
  const uint32_t interval = uint32_t(shared.region.end() - 1) / image.restart;
  const uint32_t first = cuts.interval_count > 1 ? cuts.first_spans[interval] : 0;
  const uint32_t last = interval + 1 < cuts.interval_count ? cuts.first_spans[interval + 1] : spans;
  const Blocks blocks = blocks_of(image.shape, shared.region, image.restart, interval, nullptr);
  const uint64_t likely = uint64_t(last - first) * blocks.needed * 13 / (uint64_t(blocks.count) * 12) + GROUP;
  uint32_t from = 0;
  spans = blocks.needed < blocks.count && likely < last - first ? first + uint32_t(likely) : last;
  while (synchronise(scan, cuts, known, from, spans, starts, ends, changed, sums, shared)) {
    if (spans == last) return true;
    uint32_t found = 0, total;
    for (uint32_t i = first + threadIdx.x; i < spans; i += SCAN_THREADS) found += sums[i].blocks;
    sum_before(found, shared.totals, total);
    if (total >= blocks.needed) return true;
    from = spans;
    spans = last;
  }
  return false;
}

// Turns sums into prefix sums over the image; the entry after the last becomes the total.
__device__ void add_up(uint32_t spans, Sums* sums, Shared& shared) {
  Sums carried{};
  for (uint32_t base = 0; base < spans; base += SCAN_THREADS) {
    const uint32_t i = base + threadIdx.x;
    const Sums own = i < spans ? sums[i] : Sums{};
    Sums before, total;
    before.blocks = sum_before(own.blocks, shared.totals, total.blocks);
#pragma unroll
    for (int k = 0; k < 3; ++k) before.dc[k] = sum_before(own.dc[k], shared.totals, total.dc[k]);
    before.add(carried);
    if (i < spans) sums[i] = before;
    carried.add(total);
  }
  if (threadIdx.x == 0) sums[spans] = carried;
  __syncthreads();
}

// If all components share their tables, only the number of blocks before a block tells its place in the MCU. This puts the
// place into the states, from prefix sums, and decodes all once more for the means of each component.
__device__ void place_blocks(const Scan& scan, const Cuts& cuts, uint32_t spans, uint32_t* starts, uint32_t* ends,
                             Sums* sums) {
  for (uint32_t i = threadIdx.x; i < spans; i += SCAN_THREADS) {
    starts[i] |= (sums[i].blocks - sums[span_of(cuts, i).first].blocks) % scan.each << BLOCK_SHIFT;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < spans; i += SCAN_THREADS) {
    Sums own;
    ends[i] = pass_over(scan, span_of(cuts, i), starts[i], own);
    sums[i] = own;
  }
  __syncthreads();
}

// The block that a subsequence ends inside of; null if it is not kept, or if the interval ends with the subsequence.
__device__ int16_t* open_block(const Blocks& blocks, const Span& span, uint32_t i, const uint32_t* ends, const Sums* sums) {
  return span.end == span.limit ? nullptr : blocks.open(ends[i], sums[i + 1].minus(sums[span.first]));
}

// Writes the coefficients that are kept; returns the fault of the first faulty subsequence. written: workspace for the
// numbers of subsequences with coefficients
__device__ uint8_t write_coefficients(const Scan& scan, const Cuts& cuts, const Image& image, uint32_t spans,
                                      const uint32_t* starts, const uint32_t* ends, const Sums* sums, uint32_t* written,
                                      int16_t* coefficients, Shared& shared) {
  const auto own = [&](uint32_t interval) {
    return blocks_of(image.shape, shared.region, image.restart, interval, coefficients);
  };
  if (threadIdx.x == 0) shared.wrong = ALL, shared.counts[0] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < spans; i += SCAN_THREADS) {
    const Span span = span_of(cuts, i);
    const Blocks blocks = own(span.interval);
    const uint32_t before = sums[span.first].blocks;
    if (!blocks.written(ends[i], sums[i].blocks - before, sums[i + 1].blocks - before, span.end == span.limit)) continue;
    written[atomicAdd(&shared.counts[0], 1u)] = i;
    int16_t* const open = open_block(blocks, span, i, ends, sums);
    if (open != nullptr) clear_block(open);
  }
  __syncthreads();
  const uint32_t count = shared.counts[0];
  for (uint32_t place = threadIdx.x; place < count; place += SCAN_THREADS) {
    const uint32_t i = written[place];
    const Span span = span_of(cuts, i);
    const Blocks blocks = own(span.interval);
    const uint8_t fault = write_span(scan, span, starts[i], sums[i].minus(sums[span.first]), blocks,
                                     open_block(blocks, span, i, ends, sums));
    if (fault != NO_FAULT) atomicMin(&shared.wrong, i << 8 | fault);
  }
  __syncthreads();
  return shared.wrong == ALL ? NO_FAULT : uint8_t(shared.wrong & 255);
}

__global__ void __launch_bounds__(SCAN_THREADS, SCAN_BLOCKS) entropy_kernel(Files files, int64_t first, FilesWorkspace work) {
  __shared__ Shared shared;
  const Image& image = files.images[first + blockIdx.x];
  if (image.fault != NO_FAULT) {
    if (threadIdx.x == 0) files.faults[image.index] = image.fault;
    return;
  }
  const uint32_t dct_tiles = tiles_of(image.part.blocks(), DCT_TILE);
  const uint32_t colour_tiles = tiles_of(image.part.spans(), COLOUR_TILE);
  for (uint32_t i = threadIdx.x; i < dct_tiles; i += SCAN_THREADS) work.dct_images[image.dct_tile + i] = blockIdx.x;
  for (uint32_t i = threadIdx.x; i < colour_tiles; i += SCAN_THREADS) {
    work.colour_images[image.colour_tile + i] = blockIdx.x;
  }
  uint32_t *const words = work.words + image.words, *const intervals = work.intervals + image.intervals;
  uint32_t *const first_spans = work.first_spans + image.intervals, *const interval_of = work.interval_of + image.spans;
  uint32_t *const starts = work.starts + image.spans, *const ends = work.ends + image.spans;
  Sums* const sums = work.sums + image.spans;
  if (threadIdx.x == 0) shared.region = image.region;
  expand_tables(files, image, shared);
  uint8_t fault = unstuff(files.data + image.coded, image, words, intervals, shared);
  if (fault == NO_FAULT) {
    const Scan scan{shared.huffman, words, image.shape.luma_blocks(), image.shape.mcu_blocks(),
                    shared.steps[0]};
    const Cuts cuts{intervals, first_spans, interval_of, image.interval_count, SUBSEQUENCE};
    uint32_t spans = cut_intervals(cuts, first_spans, interval_of, shared);
    const bool alike = scan.each > 1 && image.huffman[0] == image.huffman[2] && image.huffman[1] == image.huffman[3];
    const uint32_t known = alike ? WITHOUT_BLOCK | DOUBT : ALL;
    uint32_t* const changed[2] = {work.changed + image.spans, work.changed_next + image.spans};
    if (synchronise_needed(scan, cuts, known, image, spans, starts, ends, changed, sums, shared)) {
      add_up(spans, sums, shared);
      if (alike) {
        place_blocks(scan, cuts, spans, starts, ends, sums);
        add_up(spans, sums, shared);
      }
      fault = write_coefficients(scan, cuts, image, spans, starts, ends, sums, changed[0],
                                 work.coefficients + image.blocks * BLOCK, shared);
    } else {
      fault = NOT_SYNCHRONISED;
    }
  }
  if (threadIdx.x == 0) files.faults[image.index] = fault;
}

constexpr uint32_t DCT_BLOCKS = 32;  // per iteration

__global__ void __launch_bounds__(DCT_BLOCKS* LINES) dct_kernel(Files files, int64_t first, FilesWorkspace work) {
  __shared__ int32_t turned[DCT_BLOCKS][LINES * PITCH];
  __shared__ uint16_t divisors[3][BLOCK];
  __shared__ uint8_t natural[BLOCK];
  __shared__ uint8_t known;  // the fault at the start: other thread blocks may write one meanwhile
  const Image& image = files.images[first + work.dct_images[blockIdx.x]];
  const Shape shape = image.part;
  const uint32_t quarter = threadIdx.x / BLOCK, k = threadIdx.x % BLOCK;
  if (int(quarter) < shape.components) divisors[quarter][k] = files.data[image.quantisation[quarter] + k];
  if (quarter == 3) natural[k] = natural_place(k);
  if (threadIdx.x == 0) known = files.faults[image.index];
  __syncthreads();
  if (known != NO_FAULT) return;
  const uint32_t own = threadIdx.x / LINES, line = threadIdx.x % LINES, tile = blockIdx.x - image.dct_tile;
  const uint32_t first_block = tile * DCT_TILE, end = min(uint32_t(shape.blocks()), first_block + DCT_TILE);
  // place_of is slow: the eight threads of a block compute it for eight blocks at once
  const Place coming = place_of(shape, int(min(first_block + line * DCT_BLOCKS + own, end - 1)));
  static_assert(DCT_TILE <= DCT_BLOCKS * LINES, "a thread a place");
  bool large = false;
  for (uint32_t base = first_block, turn = 0; base < end; base += DCT_BLOCKS, ++turn) {
    const bool inside = base + own < end;  // all threads stay, since warps are synchronised
    const uint32_t block = inside ? base + own : end - 1;
    const uint32_t from = threadIdx.x % WARP / LINES * LINES + turn;  // the thread that computed its place
    const int begin = __shfl_sync(ALL, coming.start, from), pitch = __shfl_sync(ALL, coming.pitch, from);
    const int component = __shfl_sync(ALL, coming.component, from);
    const int64_t start = (image.blocks + block) * BLOCK;
    const uint2 samples = dct_line(work.coefficients + start, divisors[component], natural, turned[own], line, large);
    uint8_t* const to = work.planes + image.blocks * BLOCK + begin + line * pitch;
    if (inside) *reinterpret_cast<uint2*>(to) = samples;
    __syncwarp();
  }
  if (large) files.faults[image.index] = BAD_RANGE;
}

constexpr uint32_t COLOUR_THREADS = 256, VECTOR = PIXEL_ALIGNMENT;  // bytes per write

// The span at (x, y), whatever the sampling is
__device__ __forceinline__ void any_span_at(Shape shape, const uint8_t* planes, int x, int y, bool smooth,
                                            uint32_t (&words)[SPAN_WORDS]) {
  if (shape.h == 4) return span_at<Sampling<4, 1>>(shape, planes, x, y, smooth, words);
  if (shape.h == 2 && shape.v == 2) return span_at<Sampling<2, 2>>(shape, planes, x, y, smooth, words);
  if (shape.h == 2) return span_at<Sampling<2, 1>>(shape, planes, x, y, smooth, words);
  if (shape.v == 2) return span_at<Sampling<1, 2>>(shape, planes, x, y, smooth, words);
  return span_at<Sampling<1, 1>>(shape, planes, x, y, smooth, words);
}

// Each thread makes a span; then all write together, since the spans of a tile are contiguous.
__global__ void __launch_bounds__(COLOUR_THREADS) colour_kernel(Files files, int64_t first, FilesWorkspace work) {
  __shared__ alignas(VECTOR) uint8_t piece[COLOUR_THREADS * SPAN * 3 + VECTOR];
  const Image& image = files.images[first + work.colour_images[blockIdx.x]];
  const Shape shape = image.part;
  const bool sound = files.faults[image.index] == NO_FAULT, smooth = smooths(image.shape, files.fancy);
  const uint8_t* const planes = work.planes + image.blocks * BLOCK;
  const uint32_t across = (shape.width + SPAN - 1) / SPAN, tile = blockIdx.x - image.colour_tile;
  const uint32_t spans = across * shape.height, end = min(spans, (tile + 1) * COLOUR_TILE);
  for (uint32_t base = tile * COLOUR_TILE; base < end; base += COLOUR_THREADS) {
    const uint32_t next = min(base + COLOUR_THREADS, end), span = base + threadIdx.x;
    const uint32_t y = span / across, x = (span - y * across) * SPAN;
    // first and end byte within the image, which begins at a multiple of VECTOR
    const uint32_t from = (base / across * shape.width + base % across * SPAN) * 3;
    const uint32_t to = next % across == 0 ? next / across * shape.width * 3
                                           : (next / across * shape.width + next % across * SPAN) * 3;
    const uint32_t lead = from % VECTOR;
    uint32_t behind = lead + to - from;
    if (next == spans) {  // zero padding up to the next image
      const uint32_t filled = (behind + VECTOR - 1) / VECTOR * VECTOR;
      if (threadIdx.x < filled - behind) piece[behind + threadIdx.x] = 0;
      behind = filled;
    }
    if (span < next) {
      uint32_t words[SPAN_WORDS] = {};
      if (sound) any_span_at(shape, planes, x, y, smooth, words);
      uint8_t* const own = piece + lead + (y * shape.width + x) * 3 - from;
      const uint32_t bytes = min(SPAN, shape.width - int(x)) * 3;
#pragma unroll
      for (uint32_t i = 0; i < SPAN_WORDS; ++i) {
        if (shape.width % 4 == 0) {
          if (4 * i < bytes) reinterpret_cast<uint32_t*>(own)[i] = words[i];
          continue;
        }
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          if (4 * i + k < bytes) own[4 * i + k] = uint8_t(words[i] >> (8 * k));
        }
      }
    }
    __syncthreads();
    uint8_t* const pixels = files.pixels + image.pixels + (from - lead);
    for (uint32_t i = threadIdx.x * VECTOR; i < behind; i += COLOUR_THREADS * VECTOR) {
      if (i >= lead && i + VECTOR <= behind) {
        *reinterpret_cast<uint4*>(pixels + i) = *reinterpret_cast<const uint4*>(piece + i);
      } else {
        for (uint32_t k = max(i, lead); k < min(i + VECTOR, behind); ++k) pixels[k] = piece[k];
      }
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t decode_chunk(const Files& files, const Chunk& chunk, const FilesWorkspace& work, cudaStream_t stream) {
  if (chunk.count == 0) return cudaSuccess;
  entropy_kernel<<<unsigned(chunk.count), SCAN_THREADS, 0, stream>>>(files, chunk.first, work);
  if (chunk.dct_tiles > 0) {
    dct_kernel<<<chunk.dct_tiles, DCT_BLOCKS * LINES, 0, stream>>>(files, chunk.first, work);
    colour_kernel<<<chunk.colour_tiles, COLOUR_THREADS, 0, stream>>>(files, chunk.first, work);
  }
  return cudaGetLastError();
}

}  // namespace gpufeed::jpeg
