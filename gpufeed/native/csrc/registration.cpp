// The ops of the library, for every device. None returns one of its arguments, and only read_files writes into one.
#include <torch/library.h>

TORCH_LIBRARY(gpufeed, library) {
  library.def("bias_gelu(Tensor x, Tensor bias, str approximate) -> Tensor");
  library.def(
      "bias_gelu_backward(Tensor grad, Tensor x, Tensor? bias, str approximate) -> (Tensor dx, Tensor dbias)");
  library.def("linear_bias_gelu(Tensor x, Tensor weight, Tensor bias) -> (Tensor out, Tensor aux)");
  library.def("column_sum(Tensor x) -> Tensor");
  library.def(
      "decode_jpegs(Tensor data, Tensor starts, Tensor ends, Tensor tables, int height, int width, int components, "
      "int horizontal, int vertical, bool fancy, int? longest=None) -> (Tensor images, Tensor faults)");
  library.def(
      "decode_jpeg_files(Tensor data, Tensor files, Tensor offsets, bool fancy, Tensor? windows=None) -> "
      "(Tensor pixels, Tensor faults, Tensor places)");
  library.def(
      "draw_windows(Tensor ids, Tensor heights, Tensor widths, int size, float[] scale, float[] ratio, "
      "float flip_probability, int seed, int epoch) -> Tensor");
  library.def("read_files(Tensor names, Tensor(a!) data, int threads) -> (Tensor offsets, Tensor codes)");
}
