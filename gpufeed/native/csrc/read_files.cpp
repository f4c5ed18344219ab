// read_files: reads many whole files into one buffer in host memory, by threads that do not hold the GIL.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

namespace gpufeed {
namespace {

constexpr int64_t MOST_BYTES = int64_t(1) << 31;  // of one file, so that sums of sizes do not overflow; a sparse file may claim any size
constexpr int32_t NO_FILE = -1, CHANGED = -2;  // beside the codes of errno, which are positive; as in file_buffer.py

// Calls work(0) to work(count - 1) on at most `most` threads, this one among them.
template <typename Work>
void each(int64_t count, int64_t most, const Work& work) {
  std::atomic<int64_t> next{0};
  auto run = [&] {
    for (int64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < std::min(most, count); ++i) {
    try {
      others.emplace_back(run);
    } catch (const std::system_error&) {  // no more threads available: continue with those that run
      break;
    }
  }
  run();
  for (auto& thread : others) thread.join();
}

int32_t find_size(const char* path, int64_t& size) {
  struct stat about;
  if (::stat(path, &about) != 0) return errno;
  if (!S_ISREG(about.st_mode)) return NO_FILE;  // opening a pipe would wait for its writer
  if (about.st_size > MOST_BYTES) return EFBIG;
  size = about.st_size;
  return 0;
}

int32_t read_whole(const char* path, uint8_t* to, int64_t size) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // it may have become a pipe since then
  if (file < 0) return errno;
  uint8_t beyond;  // read only if the file has grown
  int64_t done = 0;
  int32_t code = 0;
  while (true) {
    const iovec parts[] = {{to + done, static_cast<size_t>(size - done)}, {&beyond, 1}};
    const ssize_t got = ::readv(file, parts, 2);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) code = errno;
    done += std::max<ssize_t>(got, 0);
    if (got <= 0 || done >= size) break;
  }
  ::close(file);
  return code != 0 ? code : done == size ? 0 : CHANGED;
}

void check(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kByte, "found: ", name, " of ", tensor.scalar_type(),
                   "; expected: uint8; what to do: give bytes");
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.dim() == 1 && tensor.is_contiguous(), "found: ", name, " on ",
                    tensor.device(), " of ", std::to_string(tensor.dim()),
                    " dimensions; expected: one dimension without gaps in host memory; what to do: give such a buffer");
}

// names: paths, each with a trailing 0. Reads nothing if data is too small: the last offset tells the needed size.
std::tuple<at::Tensor, at::Tensor> read_files(const at::Tensor& names, at::Tensor& data, int64_t threads) {
  check(names, "names");
  check(data, "data");
  const char* name = reinterpret_cast<const char*>(names.const_data_ptr<uint8_t>());
  const char* end = name + names.numel();
  TORCH_CHECK_VALUE(name == end || end[-1] == 0,
                    "found: a last name without an end; expected: a 0 behind each name; what to do: add it");
  std::vector<const char*> paths;
  for (; name != end; name = std::find(name, end, '\0') + 1) paths.push_back(name);
  const int64_t count = paths.size();
  at::Tensor offsets = at::zeros({count + 1}, at::kLong), codes = at::zeros({count}, at::kInt);
  auto* place = offsets.mutable_data_ptr<int64_t>();
  auto* code = codes.mutable_data_ptr<int32_t>();
  each(count, threads, [&](int64_t i) { code[i] = find_size(paths[i], place[i + 1]); });
  for (int64_t i = 0; i < count; ++i) place[i + 1] += place[i];
  if (place[count] <= data.numel()) {
    auto* to = data.mutable_data_ptr<uint8_t>();
    each(count, threads, [&](int64_t i) {
      if (code[i] == 0) code[i] = read_whole(paths[i], to + place[i], place[i + 1] - place[i]);
    });
  }
  return {offsets, codes};
}

}  // namespace

// for every device, since a library with CUDA kernels must have all ops for CUDA
TORCH_LIBRARY_IMPL(gpufeed, CompositeExplicitAutograd, library) { library.impl("read_files", read_files); }

}  // namespace gpufeed
