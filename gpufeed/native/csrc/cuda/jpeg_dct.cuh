// The inverse DCT of 8 x 8 blocks by eight threads each, for all JPEG kernels.
#pragma once

#include "../jpeg.h"

namespace gpufeed::jpeg {

constexpr int LINES = 8, PITCH = 9;  // nine words per row, so that neither columns nor rows have bank conflicts

// Place of zigzag coefficient k in a block with rows of PITCH words
__device__ __forceinline__ uint8_t natural_place(int k) { return ZIGZAG[k] / 8 * PITCH + ZIGZAG[k] % 8; }

// Eight samples of a block: its line `line`. All threads of a warp must call it together, eight for each block.
// natural: natural_place of all k; work: LINES * PITCH words per block; large: set if a value is too large.
__device__ __forceinline__ uint2 dct_line(const int16_t* coefficients, const uint16_t* divisors, const uint8_t* natural,
                                          int32_t* work, int line, bool& large) {
  union {
    uint4 word;
    int16_t value[8];
  } loaded;
  loaded.word = *reinterpret_cast<const uint4*>(coefficients + line * 8);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int32_t value = int32_t(loaded.value[i]) * divisors[line * 8 + i];
    large |= too_large(value);
    work[natural[line * 8 + i]] = value;
  }
  __syncwarp();
  int32_t x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = work[i * PITCH + line];
  inverse_dct<COLUMN_SHIFT>(x);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    large |= too_large(x[i]);
    work[i * PITCH + line] = x[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = work[line * PITCH + i];
  inverse_dct<ROW_SHIFT>(x);
  uint32_t half[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) half[i / 4] |= uint32_t(clamped(x[i] + 128)) << (8 * (i % 4));
  return make_uint2(half[0], half[1]);
}

}  // namespace gpufeed::jpeg
