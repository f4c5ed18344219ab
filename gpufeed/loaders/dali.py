"""DALI as a loader: its decoder, fed with the bytes of each batch."""

from gpufeed.loaders.streaming import StreamingLoader


class DaliCpuLoader(StreamingLoader):
    """DALI on the CPU, on the request's threads."""

    decoder = "dali_cpu"


class DaliGpuLoader(StreamingLoader):
    """DALI with Huffman decoding on the request's threads and the rest on the GPU."""

    decoder = "dali_gpu"
