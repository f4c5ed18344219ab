// The kernels of jpeg_files.cu by themselves, for jpeg_kernels.py: each one's time, and calls on several streams at once.
#include <cuda_runtime.h>

#include <cstring>
#include <vector>

#include "cuda/jpeg_files.cu"

namespace gpufeed::jpeg {

#define CHECKED(call)                                                          \
  if (const cudaError_t error = (call); error != cudaSuccess) return int(error)

// times: ms of entropy decoding, inverse DCT and colour, each the mean of `calls`, and of a call on `streams` streams at
// once. pixels, faults: of the last call, on the host. windows: as read_headers has them. One chunk. Returns CUDA's error.
extern "C" int measure(const uint8_t* data, int64_t bytes, const int64_t* offsets, int64_t count, const int32_t* windows,
                       int calls, int streams, float* times, uint8_t* pixels, uint8_t* faults) {
  int64_t size = 0;
  std::vector<Image> images = read_headers(data, bytes, offsets, count, size, windows);
  const Chunk chunk = cut_into_chunks(images, int64_t(1) << 40)[0];
  uint8_t* on_device;
  Image* table;
  CHECKED(cudaMalloc(&on_device, size_t(bytes)));
  CHECKED(cudaMalloc(&table, images.size() * sizeof(Image)));
  CHECKED(cudaMemcpy(on_device, data, size_t(bytes), cudaMemcpyHostToDevice));
  CHECKED(cudaMemcpy(table, images.data(), images.size() * sizeof(Image), cudaMemcpyHostToDevice));
  std::vector<Files> files(streams);
  std::vector<FilesWorkspace> work(streams);
  std::vector<cudaStream_t> stream(streams);
  for (int i = 0; i < streams; ++i) {
    uint8_t *memory, *output, *fault;
    CHECKED(cudaMalloc(&memory, size_t(workspace_in(nullptr, chunk).bytes)));
    CHECKED(cudaMalloc(&output, size_t(size)));
    CHECKED(cudaMalloc(&fault, size_t(count)));
    CHECKED(cudaMemset(output, 0, size_t(size)));
    files[i] = {on_device, bytes, table, true, output, fault};
    work[i] = workspace_in(memory, chunk);
    CHECKED(cudaStreamCreate(&stream[i]));
  }
  cudaEvent_t mark[4];
  for (cudaEvent_t& each : mark) CHECKED(cudaEventCreate(&each));
  std::memset(times, 0, 4 * sizeof(*times));
  for (int call = -2; call < calls; ++call) {  // two to warm up
    CHECKED(cudaEventRecord(mark[0], stream[0]));
    entropy_kernel<<<unsigned(chunk.count), SCAN_THREADS, 0, stream[0]>>>(files[0], 0, work[0]);
    CHECKED(cudaEventRecord(mark[1], stream[0]));
    dct_kernel<<<chunk.dct_tiles, DCT_BLOCKS * LINES, 0, stream[0]>>>(files[0], 0, work[0]);
    CHECKED(cudaEventRecord(mark[2], stream[0]));
    colour_kernel<<<chunk.colour_tiles, COLOUR_THREADS, 0, stream[0]>>>(files[0], 0, work[0]);
    CHECKED(cudaEventRecord(mark[3], stream[0]));
    CHECKED(cudaDeviceSynchronize());
    for (int i = 0; i < 3 && call >= 0; ++i) {
      float ms;
      CHECKED(cudaEventElapsedTime(&ms, mark[i], mark[i + 1]));
      times[i] += ms / float(calls);
    }
  }
  CHECKED(cudaEventRecord(mark[0], stream[0]));
  for (int i = 1; i < streams; ++i) CHECKED(cudaStreamWaitEvent(stream[i], mark[0], 0));
  for (int call = 0; call < calls * streams; ++call) {
    CHECKED(decode_chunk(files[call % streams], chunk, work[call % streams], stream[call % streams]));
  }
  for (int i = 1; i < streams; ++i) {
    CHECKED(cudaEventRecord(mark[2], stream[i]));
    CHECKED(cudaStreamWaitEvent(stream[0], mark[2], 0));
  }
  CHECKED(cudaEventRecord(mark[1], stream[0]));
  CHECKED(cudaDeviceSynchronize());
  CHECKED(cudaEventElapsedTime(&times[3], mark[0], mark[1]));
  times[3] /= float(calls * streams);
  CHECKED(cudaMemcpy(pixels, files[streams - 1].pixels, size_t(size), cudaMemcpyDeviceToHost));
  CHECKED(cudaMemcpy(faults, files[streams - 1].faults, size_t(count), cudaMemcpyDeviceToHost));
  for (int i = 0; i < streams; ++i) {
    CHECKED(cudaFree(work[i].words));
    CHECKED(cudaFree(files[i].pixels));
    CHECKED(cudaFree(files[i].faults));
    CHECKED(cudaStreamDestroy(stream[i]));
  }
  CHECKED(cudaFree(on_device));
  return int(cudaFree(table));
}

extern "C" int64_t output_bytes(const uint8_t* data, int64_t bytes, const int64_t* offsets, int64_t count,
                                const int32_t* windows) {
  int64_t size = 0;
  read_headers(data, bytes, offsets, count, size, windows);
  return size;
}

}  // namespace gpufeed::jpeg
