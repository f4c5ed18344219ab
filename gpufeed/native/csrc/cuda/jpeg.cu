// Baseline JPEGs in four kernels: removal of stuffing (a warp per image), entropy decoding (a thread per image), inverse
// DCT (eight threads per 8 x 8 block), upsampling and colour (a thread per eight pixels). All images share their tables.

#include "jpeg_dct.cuh"
#include "jpeg_launch.h"

namespace gpufeed::jpeg {
namespace {

constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;

// Where an image's words begin. With `room`, each image has that many words. Without it, they begin at the image's bytes,
// two words later for each image before it, so that all can be padded with zeros.
__host__ __device__ __forceinline__ int64_t first_word(int64_t room, int64_t offset, int64_t image) {
  return room > 0 ? room * image : (offset + 3) / 4 + 2 * image;
}

constexpr int UNSTUFF_WARPS = 8, AHEAD = 4;  // images per thread block; loads in flight

__global__ void __launch_bounds__(WARP* UNSTUFF_WARPS)
    unstuff_kernel(const uint8_t* __restrict__ data, int64_t bytes, const int64_t* __restrict__ starts,
                   const int64_t* __restrict__ ends, int64_t count, int64_t longest, int64_t room,
                   uint32_t* __restrict__ words, uint32_t* __restrict__ lengths, uint8_t* __restrict__ faults) {
  const int64_t image = int64_t(blockIdx.x) * UNSTUFF_WARPS + threadIdx.x / WARP;
  const int lane = threadIdx.x % WARP;
  if (image >= count) return;
  const int64_t start = starts[image], end = ends[image];
  if (!lies_inside(start, end, bytes, longest)) {
    if (lane == 0) lengths[image] = 0, faults[image] = BAD_PLACE;
    return;
  }
  const uint8_t* const from = data + start;
  const uint32_t length = uint32_t(end - start);
  uint8_t* const to = reinterpret_cast<uint8_t*>(words + first_word(room, start, image));
  uint32_t written = 0, before = 0;
  bool marker = false;
  for (uint32_t base = 0; base < length; base += WARP * AHEAD) {
    uint32_t byte[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const uint32_t place = base + i * WARP + lane;
      byte[i] = place < length ? from[place] : 0;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const bool inside = base + i * WARP + lane < length;
      uint32_t left = __shfl_up_sync(ALL, byte[i], 1);
      if (lane == 0) left = before;
      before = __shfl_sync(ALL, byte[i], WARP - 1);
      const bool follows = inside && left == 0xff;
      marker |= follows && byte[i] != 0;
      const bool kept = inside && !follows;  // a byte after 0xff that is not stuffing is a fault
      const unsigned mask = __ballot_sync(ALL, kept);
      if (kept) to[written + __popc(mask & ((1u << lane) - 1))] = uint8_t(byte[i]);
      written += __popc(mask);
    }
  }
  if (length > 0) marker |= from[length - 1] == 0xff;
  marker = __any_sync(ALL, marker);
  if (lane < 4) to[written + lane] = 0;
  if (lane == 0) lengths[image] = written, faults[image] = marker ? BAD_MARKER : NO_FAULT;
}

// One warp per thread block, since images differ in length: a block occupies its place until its last image is done.
__global__ void __launch_bounds__(WARP)
    entropy_kernel(const Tables* __restrict__ tables, Shape shape, const uint32_t* __restrict__ words,
                   const uint32_t* __restrict__ lengths, const int64_t* __restrict__ starts, int64_t first,
                   int64_t count, int64_t room, int16_t* __restrict__ coefficients, uint8_t* __restrict__ faults) {
  __shared__ alignas(16) Huffman huffman[4];
  constexpr int PIECES = sizeof(huffman) / sizeof(uint4);
  const uint4* const from = reinterpret_cast<const uint4*>(tables->huffman);
  for (int i = threadIdx.x; i < PIECES; i += WARP) reinterpret_cast<uint4*>(huffman)[i] = from[i];
  __syncthreads();
  const int64_t place = int64_t(blockIdx.x) * WARP + threadIdx.x, image = first + place;
  if (place >= count || faults[image] != NO_FAULT) return;
  faults[image] = decode_entropy(huffman, shape, words + first_word(room, starts[image], image), lengths[image],
                                 coefficients + place * shape.blocks() * BLOCK);
}

constexpr int DCT_BLOCKS = 32;

__global__ void __launch_bounds__(DCT_BLOCKS* LINES)
    dct_kernel(const Tables* __restrict__ tables, Shape shape, const int16_t* __restrict__ coefficients,
               uint8_t* __restrict__ planes, uint8_t* __restrict__ faults) {
  __shared__ int32_t work[DCT_BLOCKS][LINES * PITCH];
  __shared__ uint16_t divisors[3][BLOCK];
  __shared__ uint8_t natural[BLOCK];  // place in `work` of each coefficient in zigzag order
  const int component = threadIdx.x / BLOCK, k = threadIdx.x % BLOCK;
  if (component < 3) divisors[component][k] = tables->quantisation[component][k];
  if (component == 0) natural[k] = natural_place(k);
  __syncthreads();
  const int blocks = shape.blocks(), own = threadIdx.x / LINES, line = threadIdx.x % LINES;
  const int block = blockIdx.x * DCT_BLOCKS + own;
  const bool inside = block < blocks;  // all threads stay, since warps are synchronised
  const int64_t start = (int64_t(blockIdx.y) * blocks + (inside ? block : 0)) * BLOCK;
  const Place place = place_of(shape, inside ? block : 0);
  bool large = false;
  const uint2 samples =
      dct_line(coefficients + start, divisors[place.component], natural, work[own], line, large);
  // an earlier fault takes precedence: its coefficients are incomplete
  if (large && faults[blockIdx.y] == NO_FAULT) faults[blockIdx.y] = BAD_RANGE;
  uint8_t* const to = planes + int64_t(blockIdx.y) * blocks * BLOCK + place.start + line * place.pitch;
  if (inside) *reinterpret_cast<uint2*>(to) = samples;
}

constexpr int COLOUR_THREADS = 256, PAIRS = SPAN_WORDS / 2;  // of words, as they are written

// A thread per span; samples: of an image's planes. If spans are adjacent, a warp transposes its own in shared memory, so
// that neighbouring threads write neighbouring addresses.
template <class Of>
__global__ void __launch_bounds__(COLOUR_THREADS)
    colour_kernel(Shape shape, int64_t samples, const uint8_t* __restrict__ planes,
                  const uint8_t* __restrict__ faults, bool smooth, uint8_t* __restrict__ images) {
  __shared__ uint2 turned[COLOUR_THREADS / WARP][WARP * PAIRS];
  const uint32_t across = (shape.width + SPAN - 1) / SPAN, spans = across * shape.height;
  const uint32_t span = blockIdx.x * COLOUR_THREADS + threadIdx.x, y = span / across, x = (span - y * across) * SPAN;
  const bool inside = span < spans;  // all threads stay, since warps are synchronised
  uint32_t words[SPAN_WORDS] = {};
  if (inside && faults[blockIdx.y] == NO_FAULT) span_at<Of>(shape, planes + blockIdx.y * samples, x, y, smooth, words);
  uint8_t* const image = images + int64_t(blockIdx.y) * shape.height * shape.width * 3;
  if (shape.width % SPAN == 0) {
    const uint32_t lane = threadIdx.x % WARP, first = span - lane;
    uint2* const own = turned[threadIdx.x / WARP];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) own[lane * PAIRS + i] = make_uint2(words[2 * i], words[2 * i + 1]);
    __syncwarp();
    uint2* const to = reinterpret_cast<uint2*>(image) + first * PAIRS;
    const uint32_t count = first < spans ? (spans - first) * PAIRS : 0;
#pragma unroll
    for (uint32_t place = lane; place < WARP * PAIRS; place += WARP) {
      if (place < count) to[place] = own[place];
    }
    return;
  }
  if (!inside) return;
  uint8_t* const to = image + (y * shape.width + x) * 3;
  const int bytes = min(SPAN, shape.width - int(x)) * 3;
#pragma unroll
  for (int i = 0; i < SPAN_WORDS; ++i) {
    if (shape.width % 4 == 0) {
      if (4 * i < bytes) reinterpret_cast<uint32_t*>(to)[i] = words[i];
      continue;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (4 * i + k < bytes) to[4 * i + k] = uint8_t(words[i] >> (8 * k));
    }
  }
}

unsigned pieces(int64_t work, int64_t each) { return unsigned((work + each - 1) / each); }

// Decodes images first to first + count, after their stuffing was removed
cudaError_t decode_some(const Coded& in, const Workspace& work, int64_t first, int64_t count, bool fancy,
                        uint8_t* images, uint8_t* faults, cudaStream_t stream) {
  const int blocks = in.shape.blocks();
  const cudaError_t cleared =
      cudaMemsetAsync(work.coefficients, 0, size_t(count) * blocks * BLOCK * sizeof(int16_t), stream);
  if (cleared != cudaSuccess) return cleared;
  entropy_kernel<<<pieces(count, WARP), WARP, 0, stream>>>(in.tables, in.shape, work.words, work.lengths, in.starts,
                                                           first, count, in.room, work.coefficients, faults);
  const dim3 dct(pieces(blocks, DCT_BLOCKS), unsigned(count));
  dct_kernel<<<dct, DCT_BLOCKS * LINES, 0, stream>>>(in.tables, in.shape, work.coefficients, work.planes,
                                                           faults + first);
  const int64_t spans = int64_t(in.shape.height) * pieces(in.shape.width, SPAN);
  const dim3 colour(pieces(spans, COLOUR_THREADS), unsigned(count));
  by_sampling(in.shape, [&](auto of) {
    colour_kernel<decltype(of)><<<colour, COLOUR_THREADS, 0, stream>>>(
        in.shape, int64_t(blocks) * BLOCK, work.planes, faults + first, smooths(in.shape, fancy),
        images + first * in.shape.height * in.shape.width * 3);
  });
  return cudaGetLastError();
}

}  // namespace

int64_t unstuffed_bytes(const Coded& in) { return first_word(in.room, in.bytes, in.count) * 4 + 16; }

cudaError_t decode(const Coded& in, const Workspace& work, bool fancy, uint8_t* images, uint8_t* faults,
                   cudaStream_t stream) {
  unstuff_kernel<<<pieces(in.count, UNSTUFF_WARPS), WARP * UNSTUFF_WARPS, 0, stream>>>(
      in.data, in.bytes, in.starts, in.ends, in.count, in.longest, in.room, work.words, work.lengths, faults);
  for (int64_t first = 0; first < in.count; first += work.images) {
    const int64_t count = in.count - first < work.images ? in.count - first : work.images;
    const cudaError_t error = decode_some(in, work, first, count, fancy, images, faults, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaGetLastError();
}

}  // namespace gpufeed::jpeg
