// draw_windows: the windows of random_resized_crop.py for a batch on the host, in one call without the GIL. Numbers and
// order of operations are those of RandomResizedCrop.windows, whose docstring has the rule.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

namespace gpufeed {
namespace {

constexpr int64_t MASK = 0xFFFFFFFF, GOLDEN = 0x9E3779B9;  // as random_draws.py
constexpr int64_t FLIP = 2, WINDOW = 6;                    // the draws of a sample
constexpr int64_t TRIES = 10, DRAWS = 4, AREA = 0, RATIO = 1, TOP = 2, LEFT = 3;  // as random_resized_crop.py
constexpr double UNIT = 1.0 / (int64_t(1) << 32);
constexpr int64_t FIELDS = 9;  // of Windows

uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

uint32_t fold(uint32_t state, int64_t value) { return mix(state ^ mix(static_cast<uint32_t>((value + GOLDEN) & MASK))); }

int64_t below(uint32_t draw, int64_t limit) { return (int64_t(draw) * limit) >> 32; }

void check(const at::Tensor& tensor, int64_t count) {
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.dim() == 1 && tensor.numel() == count, "found: a tensor on ",
                    tensor.device(), " of ", std::to_string(tensor.numel()), " numbers; expected: ids, heights and ",
                    "widths in host memory, one each; what to do: give such tensors");
}

// ids, heights, widths: (n,) -> int64 (9, n), the fields of Windows in order, the last 0 or 1.
at::Tensor draw_windows(const at::Tensor& ids, const at::Tensor& heights, const at::Tensor& widths, int64_t size,
                        at::ArrayRef<double> scale, at::ArrayRef<double> ratio, double flip_probability, int64_t seed,
                        int64_t epoch) {
  TORCH_CHECK_VALUE(scale.size() == 2 && ratio.size() == 2, "found: ", scale.size(), " and ", ratio.size(),
                    " bounds; expected: two of scale and two of ratio; what to do: give both");
  const int64_t count = ids.numel();
  for (const at::Tensor* tensor : {&ids, &heights, &widths}) check(*tensor, count);
  const auto id = ids.to(at::kLong).contiguous(), tall = heights.to(at::kLong).contiguous(),
             wide = widths.to(at::kLong).contiguous();
  at::Tensor found = at::zeros({FIELDS, count}, at::kLong);
  int64_t* out = found.mutable_data_ptr<int64_t>();
  const double low = std::log(ratio[0]), high = std::log(ratio[1]);
  const auto flips = static_cast<int64_t>(std::nearbyint(flip_probability * 4294967296.0));
  const uint32_t start = fold(fold(fold(0, seed & MASK), (seed >> 32) & MASK), epoch);
  for (int64_t n = 0; n < count; ++n) {
    const uint32_t state = fold(start, id.const_data_ptr<int64_t>()[n]);
    const int64_t height = tall.const_data_ptr<int64_t>()[n], width = wide.const_data_ptr<int64_t>()[n];
    int64_t h = 0, w = 0, top = 0, left = 0, tried = 0;
    for (; tried < TRIES; ++tried) {
      const int64_t first = WINDOW + tried * DRAWS;
      const double share = fold(state, first + AREA) * UNIT, turn = fold(state, first + RATIO) * UNIT;
      const double area = double(height * width) * (scale[0] + share * (scale[1] - scale[0]));
      const double across = std::exp(low + turn * (high - low));
      h = static_cast<int64_t>(std::nearbyint(std::sqrt(area / across)));
      w = static_cast<int64_t>(std::nearbyint(std::sqrt(area * across)));
      if (h <= 0 || h > height || w <= 0 || w > width) continue;
      top = below(fold(state, first + TOP), height - h + 1);
      left = below(fold(state, first + LEFT), width - w + 1);
      break;
    }
    if (tried == TRIES) {
      h = std::min(height, std::max<int64_t>(1, static_cast<int64_t>(std::nearbyint(width / ratio[0]))));
      w = std::min(width, std::max<int64_t>(1, static_cast<int64_t>(std::nearbyint(height * ratio[1]))));
      top = (height - h) / 2;
      left = (width - w) / 2;
    }
    const int64_t values[FIELDS] = {top, left, h, w, size, size, 0, 0, fold(state, FLIP) < flips};
    for (int64_t field = 0; field < FIELDS; ++field) out[field * count + n] = values[field];
  }
  return found;
}

}  // namespace

TORCH_LIBRARY_IMPL(gpufeed, CompositeExplicitAutograd, library) { library.impl("draw_windows", draw_windows); }

}  // namespace gpufeed
