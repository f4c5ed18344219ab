"""Every layout, store, decoder, loader, augment, model, trainer and inference backend, one entry each.

The workflow imports this file while it plans, so it does not import the modules that it names; `load` does,
in jobs. A reference to user code (gpufeed.core.references) is valid wherever a config may have one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from gpufeed.core.errors import Skip, install, require_known
from gpufeed.core.references import declared_entry, is_reference, resolve


@dataclass(frozen=True)
class Entry:
    """Where an implementation is (`module:attribute`), and what the planner must know about it."""

    target: str


@dataclass(frozen=True)
class StoreEntry(Entry):
    """A dataset in another form, built by rule build_NAME. target: opens it, (path, manifest).

    More targets, "" for none. build: (manifest, path, workers=) keeps an intact store. verify: (path,
    manifest, alive) reads every byte. parts: (path, manifest, split) -> the files of a split, if `file` is
    only an index. leaves: (path, manifest) -> whether some samples are only in the dataset's own files.
    """

    file: str  # in the folder of the dataset; {decoder}: cache_decoder
    build: str
    verify: str = ""
    parts: str = ""
    leaves: str = ""
    decoded: bool = False  # holds pixels, three bytes each: its loaders need not decode
    crops: str = ""  # file for recipe random_resized_crop; {short_side}: an option of the recipe


@dataclass(frozen=True)
class DecoderEntry(Entry):
    device: str = "any"  # any | cuda
    reads: str = "files"  # files, or a store, decoded on the GPU if there is one
    extension: bool = False  # uses gpufeed.native: its jobs wait for build_extension


@dataclass(frozen=True)
class AugmentEntry(Entry):
    device: str = "any"  # any | cuda
    does: str = "augmented"  # what it does, in words: augments with the same words are compared
    where: str = "device"  # device: on batches | sample: in the workers | loader: in its pipeline


@dataclass(frozen=True)
class RecipeEntry(Entry):
    """What happens to pixels after decoding; without a target, the cell's augment does it."""

    of_loader: bool = False  # the loader crops a window of each image and resizes it
    does: str = ""  # what it does, in words


@dataclass(frozen=True)
class ModelEntry(Entry):
    sized: bool = False  # built for one image size, which is passed to it


@dataclass(frozen=True)
class BackendEntry(Entry):
    precisions: tuple[str, ...]  # one row each; with int8 and fp8, other layers have another precision


ON_DEVICE = ("none", "torch", "chain", "fused")  # augments of batches, for every loader
PLACES = {"device": "torch", "sample": "cpu"}  # `where` of a user's augment -> one with the same loaders


@dataclass(frozen=True)
class LoaderEntry(Entry):
    workers: str = "never"  # never | optional | required
    threads: bool = False  # its workers are threads
    anew: bool = False  # it starts new workers each epoch
    stays: bool = False  # its workers live through all epochs
    own_process: bool = False  # with persistent_workers its threads run in a process of their own
    reads: str = "files"  # files, or a store
    device: str = "any"  # any | cuda
    extension: bool = False  # uses gpufeed.native: its jobs wait for build_extension
    resizes: bool = True  # supports `resize` of a source
    augments: tuple[str, ...] = (*ON_DEVICE, "cpu")
    windows: str = "never"  # of recipe random_resized_crop: given (takes ours) | own (draws its own) | never
    decoders: tuple[str, ...] = ()  # choices for its workers
    engines: bool = False  # supports hw_decoder_load
    replacement: bool = False  # draws with replacement: an epoch may repeat and miss samples
    makes: bool = False  # also loads samples without files (MADE)
    ceiling: bool = False  # repeats one batch: an upper bound, not a pipeline

    @property
    def store(self) -> StoreEntry | None:
        """The store that it reads."""
        return STORES.get(self.reads)

    @property
    def decoded(self) -> bool:
        """Whether it reads decoded pixels."""
        return self.store is not None and self.store.decoded

    def has_place_for(self, augment: str) -> bool:
        """Return whether an augment can run with it; a user's augment runs where a registered one does."""
        return (PLACES[AUGMENTS[augment].where] if is_reference(augment) else augment) in self.augments

    @property
    def reads_files(self) -> bool:
        """Whether it reads image files: all, or those that its store may leave out."""
        return self.store is None or bool(self.store.leaves)


class Registry(dict):
    """Entries by name, which also accept any reference. entry: makes the entry of a reference."""

    def __init__(self, entry: Callable[[str], Entry], entries: Mapping[str, Entry]):
        super().__init__(entries)
        self.entry = entry

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or is_reference(name)

    def __missing__(self, name: str) -> Entry:
        if not is_reference(name):
            raise KeyError(name)
        return self.entry(name)


def loader_entry(reference: str) -> LoaderEntry:
    """Return the entry of a user's loader."""
    choices = {"workers": ("never", "optional", "required"), "reads": ("files", *STORES)}
    choices |= {"windows": ("never", "given", "own"), "device": ("any", "cuda")}
    choices |= {"augments": tuple(AUGMENTS), "decoders": HOST_DECODERS}
    given = declared_entry(reference, LoaderEntry, choices)
    return LoaderEntry(reference, **given)


def augment_entry(reference: str) -> AugmentEntry:
    """Return the entry of a user's augment, which is compared with no other."""
    choices = {"device": ("any", "cuda"), "where": tuple(PLACES)}
    given = declared_entry(reference, AugmentEntry, choices)
    return AugmentEntry(reference, does=f"augmented by {reference}", **given)


# decoders of single samples on the host
HOST_DECODERS = ("pillow", "simplejpeg", "torchvision_cpu", "torchcodec_cpu")

LAYOUTS = {
    "cifar10": Entry("gpufeed.datasets.cifar10:reorganise"),
    "cifar10_jpeg": Entry("gpufeed.datasets.cifar10_jpeg:reorganise"),
    "tiny_imagenet": Entry("gpufeed.datasets.tiny_imagenet:reorganise"),
    "fashion_mnist": Entry("gpufeed.datasets.fashion_mnist:reorganise"),
    "synthetic": Entry("gpufeed.datasets.synthetic:reorganise"),
    "mosaic": Entry("gpufeed.datasets.mosaic:reorganise"),
    "gray_idx": Entry("gpufeed.datasets.gray_idx:reorganise"),
    "image_folder": Entry("gpufeed.datasets.image_folder:reorganise"),
    "noise": Entry("gpufeed.datasets.noise:reorganise"),
}
LAYOUTS = Registry(lambda name: Entry("gpufeed.datasets.user_dataset:reorganise"), LAYOUTS)

MADE = ("noise",)  # layouts without image files: Manifest.pixels makes images from sample ids
FILES = "files"  # option of a referenced Dataset: its samples are files, which all loaders can read
DERIVED = ("mosaic", "gray_idx")  # layouts made from another source, which `of` names

STORES = {
    "cache": StoreEntry(
        "gpufeed.stores.cache_format:open_cache",
        file="cache/{decoder}.npy",
        crops="cache/short{short_side}.npy",
        build="gpufeed.stores.decoded_cache:build_named",
        decoded=True,
    ),
    "strips": StoreEntry(
        "gpufeed.stores.strips_store:open_strips",
        file="strips/strips.bin",
        build="gpufeed.stores.strips_build:build",
        verify="gpufeed.stores.strips_store:verify",
        leaves="gpufeed.stores.strips_store:leaves_files",
    ),
    "shards": StoreEntry(
        "gpufeed.stores.shards_store:open_shards",
        file="shards/shards.json",
        build="gpufeed.stores.shards_build:build",
        verify="gpufeed.stores.shards_store:verify",
        parts="gpufeed.stores.shards_store:files_of_split",
    ),
    "beton": StoreEntry(
        "gpufeed.stores.ffcv_store:open_beton",
        file="beton/images.beton",
        build="gpufeed.stores.ffcv_build:build",
        verify="gpufeed.stores.ffcv_store:verify_bytes",
    ),
}

DECODERS = {
    "pillow": DecoderEntry("gpufeed.decoders.pillow:PillowDecoder"),
    "opencv": DecoderEntry("gpufeed.decoders.opencv:OpenCVDecoder"),
    "simplejpeg": DecoderEntry("gpufeed.decoders.simplejpeg:SimpleJpegDecoder"),
    "torchvision_cpu": DecoderEntry("gpufeed.decoders.torchvision_cpu:TorchvisionCpuDecoder"),
    "torchcodec_cpu": DecoderEntry("gpufeed.decoders.torchcodec_cpu:TorchcodecCpuDecoder"),
    "dali_cpu": DecoderEntry("gpufeed.decoders.dali_cpu:DaliCpuDecoder"),
    "nvimgcodec_cpu": DecoderEntry("gpufeed.decoders.nvimgcodec_cpu:NvImageCodecCpuDecoder"),
    "strips": DecoderEntry("gpufeed.decoders.strips:StripsDecoder", reads="strips"),
    "torchvision_cuda": DecoderEntry(
        "gpufeed.decoders.torchvision_cuda:TorchvisionCudaDecoder", device="cuda"
    ),
    "torchcodec_cuda": DecoderEntry("gpufeed.decoders.torchcodec_cuda:TorchcodecCudaDecoder", device="cuda"),
    "dali_gpu": DecoderEntry("gpufeed.decoders.dali_gpu:DaliGpuDecoder", device="cuda"),
    "nvimgcodec": DecoderEntry("gpufeed.decoders.nvimgcodec:NvImageCodecDecoder", device="cuda"),
    "cuda_jpeg": DecoderEntry("gpufeed.decoders.cuda_jpeg:CudaJpegDecoder", device="cuda", extension=True),
}

# loaders of single samples in workers, and of batches; the other entries list all their fields
of_samples = partial(LoaderEntry, windows="given", decoders=HOST_DECODERS)
of_batches = partial(LoaderEntry, augments=ON_DEVICE, windows="given")

LOADERS = {
    "dataloader_sync": of_samples("gpufeed.loaders.dataloader:SyncLoader", makes=True),
    "dataloader_workers": of_samples(
        "gpufeed.loaders.dataloader:WorkersLoader", workers="required", makes=True
    ),
    "overlap": of_samples("gpufeed.loaders.overlap:OverlapLoader", workers="optional", makes=True),
    "fastai": of_samples("gpufeed.loaders.fastai:FastaiLoader", workers="optional", anew=True, makes=True),
    "resident": of_batches("gpufeed.loaders.resident:ResidentLoader", reads="cache"),
    "host_cache": of_batches("gpufeed.loaders.host_cache:HostCacheLoader", reads="cache"),
    "torchvision_cuda": of_batches(
        "gpufeed.loaders.streaming:TorchvisionCudaLoader", device="cuda", resizes=False
    ),
    "torchcodec_cuda": of_batches(
        "gpufeed.loaders.streaming:TorchcodecCudaLoader", device="cuda", resizes=False
    ),
    "nvimgcodec": of_batches("gpufeed.loaders.streaming:NvImageCodecLoader", device="cuda", resizes=False),
    "cuda_jpeg": of_batches("gpufeed.loaders.cuda_jpeg:CudaJpegLoader", extension=True, resizes=False),
    "dali_gpu": of_batches(
        "gpufeed.loaders.dali:DaliGpuLoader", device="cuda", augments=(*ON_DEVICE, "dali"), engines=True
    ),
    "dali_cpu": of_batches("gpufeed.loaders.dali:DaliCpuLoader", augments=(*ON_DEVICE, "dali")),
    "dali_gpu_reader": of_batches(
        "gpufeed.loaders.dali:DaliGpuReaderLoader", device="cuda", windows="own", engines=True
    ),
    "dali_cpu_reader": of_batches("gpufeed.loaders.dali:DaliCpuReaderLoader", windows="own"),
    "strips": of_batches(
        "gpufeed.loaders.strips:StripsLoader", reads="strips", resizes=False, windows="never"
    ),
    "resident_jpeg": of_batches(
        "gpufeed.loaders.resident_jpeg:ResidentJpegLoader", extension=True, resizes=False, windows="never"
    ),
    "spdl": LoaderEntry(
        "gpufeed.loaders.spdl:SpdlLoader", workers="optional", threads=True, own_process=True, windows="given"
    ),
    "spdl_processes": LoaderEntry(
        "gpufeed.loaders.spdl:SpdlProcessesLoader", workers="required", stays=True, windows="given"
    ),
    "webdataset": of_samples(
        "gpufeed.loaders.webdataset:WebDatasetLoader", workers="optional", reads="shards"
    ),
    "webdataset_resampled": of_samples(
        "gpufeed.loaders.webdataset_resampled:ResampledLoader",
        workers="required",
        stays=True,
        reads="shards",
        replacement=True,
    ),
    "ffcv": of_batches(
        "gpufeed.loaders.ffcv:FfcvLoader", workers="optional", threads=True, reads="beton", windows="own"
    ),
    "replay": LoaderEntry("gpufeed.loaders.replay:ReplayLoader", makes=True, ceiling=True, windows="given"),
}
LOADERS = Registry(loader_entry, LOADERS)

AUGMENTS = {
    "none": AugmentEntry("gpufeed.augment.base:Normalise", does="not augmented"),
    "cpu": AugmentEntry("gpufeed.augment.cpu:CpuAugment", where="sample"),
    "torch": AugmentEntry("gpufeed.augment.reference:TorchAugment"),
    "dali": AugmentEntry(
        "gpufeed.augment.dali:DaliAugment", does="augmented by rotation and colour", where="loader"
    ),
    "chain": AugmentEntry("gpufeed.augment.chain:ChainAugment", device="cuda"),
    "fused": AugmentEntry("gpufeed.augment.fused:FusedAugment", device="cuda"),
}
AUGMENTS = Registry(augment_entry, AUGMENTS)

RECIPES = {
    "crop_flip": RecipeEntry(""),
    "random_resized_crop": RecipeEntry(
        "gpufeed.augment.random_resized_crop:RandomResizedCrop", of_loader=True, does="random resized crops"
    ),
}

MODELS = {
    "simple_cnn": ModelEntry("gpufeed.models.simple_cnn:SimpleCNN"),
    "notebook_cnn": ModelEntry("gpufeed.models.notebook_cnn:notebook_cnn", sized=True),
    "resnet18": ModelEntry("gpufeed.models.resnet:resnet18"),
    "resnet50": ModelEntry("gpufeed.models.resnet:resnet50"),
    "vit_lite": ModelEntry("gpufeed.models.vit:VisionTransformer", sized=True),
    "vit_tiny": ModelEntry("gpufeed.models.vit:VisionTransformer", sized=True),
    "vit_small": ModelEntry("gpufeed.models.vit:VisionTransformer", sized=True),
    "timm_vit_tiny": ModelEntry("gpufeed.models.timm_vit:timm_vit", sized=True),
    "timm_vit_small": ModelEntry("gpufeed.models.timm_vit:timm_vit", sized=True),
}
MODELS = Registry(lambda name: ModelEntry(name, sized=True), MODELS)

TRAINERS = {
    "plain": Entry("gpufeed.training.engines.plain:PlainTrainer"),
    "fastai": Entry("gpufeed.training.engines.fastai:FastaiTrainer"),
    "lightning": Entry("gpufeed.training.engines.lightning:LightningTrainer"),
}

TORCH_PRECISIONS = ("fp32", "fp16", "bf16")
BACKENDS = {
    "eager": BackendEntry(
        "gpufeed.benchmarks.inference.backends.torch_backends:prepare_eager", TORCH_PRECISIONS
    ),
    "compiled": BackendEntry(
        "gpufeed.benchmarks.inference.backends.torch_backends:prepare_compiled", TORCH_PRECISIONS
    ),
    "cuda_graphs": BackendEntry(
        "gpufeed.benchmarks.inference.backends.torch_backends:prepare_graph", TORCH_PRECISIONS
    ),
    "compiled_graphs": BackendEntry(
        "gpufeed.benchmarks.inference.backends.torch_backends:prepare_compiled_graph", TORCH_PRECISIONS
    ),
    "autotuned_graphs": BackendEntry(
        "gpufeed.benchmarks.inference.backends.torch_backends:prepare_autotuned_graph", TORCH_PRECISIONS[1:]
    ),
    "export": BackendEntry("gpufeed.benchmarks.inference.backends.torch_backends:prepare_program", ("fp32",)),
    "onnxruntime": BackendEntry("gpufeed.benchmarks.inference.backends.onnx_runtime:prepare", ("fp32",)),
    "onnxruntime_int8": BackendEntry("gpufeed.benchmarks.inference.backends.onnx_runtime:prepare", ("int8",)),
    "torchao_int8": BackendEntry("gpufeed.benchmarks.inference.backends.ao:prepare_int8", ("int8",)),
    "torchao_fp8": BackendEntry("gpufeed.benchmarks.inference.backends.ao:prepare_fp8", ("fp8",)),
    "tensorrt": BackendEntry("gpufeed.benchmarks.inference.backends.tensor_rt:prepare", ("fp32", "fp16")),
    "tensorrt_int8": BackendEntry("gpufeed.benchmarks.inference.backends.tensor_rt:prepare", ("int8",)),
    "tensorrt_rtx": BackendEntry(
        "gpufeed.benchmarks.inference.backends.tensor_rt:prepare_rtx", ("fp32", "fp16")
    ),
    "tensorrt_rtx_int8": BackendEntry(
        "gpufeed.benchmarks.inference.backends.tensor_rt:prepare_rtx", ("int8",)
    ),
}

KINDS: dict[str, dict[str, Any]] = {
    "layout": LAYOUTS,
    "store": STORES,
    "decoder": DECODERS,
    "loader": LOADERS,
    "augment": AUGMENTS,
    "recipe": RECIPES,
    "model": MODELS,
    "trainer": TRAINERS,
    "backend": BACKENDS,
}


def load(kind: str, name: str, what: str = "target") -> Any:
    """Import and return the object registered as `name` under `kind`.

    what: which of the entry's targets. Raises GpufeedError for an unknown name.
    """
    entries = KINDS[kind]
    require_known(kind, name, entries, where="the registry")
    target = getattr(entries[name], what)
    if target == name:  # a reference
        return resolve(name)
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def fetch(kind: str, name: str) -> Any:
    """Load an object as `load` does; raise Skip if a package that its module imports is not installed."""
    try:
        return load(kind, name)
    except ModuleNotFoundError as error:
        raise lacking(kind, name, error) from error


def lacking(kind: str, name: str, error: ModuleNotFoundError) -> Exception:
    """Return the Skip for a missing package; the error itself if the module is one of gpufeed's."""
    if (error.name or "gpufeed").split(".")[0] == "gpufeed":
        return error
    missing = f"{kind.capitalize()} {name} needs the package {error.name}, which this node lacks"
    return Skip(f"{missing}: {install(error.name)}.")


def is_made(source: Mapping[str, Any]) -> bool:
    """Return whether the images of a source are in no file."""
    layout = source.get("layout")
    return layout in MADE or (is_reference(layout) and not source.get("options", {}).get(FILES))


def takes_gpu(decoder: str) -> bool:
    """Return whether a decoder uses a GPU if there is one."""
    return DECODERS[decoder].device == "cuda" or DECODERS[decoder].reads in STORES


def takes_extension(decoder: str) -> bool:
    """Return whether a decoder, or a reader of strips, uses gpufeed.native."""
    return decoder in DECODERS and DECODERS[decoder].extension


def store_file(loader: str, decoder: str, recipe: Mapping[str, Any] | None) -> str | None:
    """Return the file that a loader reads in the folder of a dataset; None without a store.

    decoder: the config's cache_decoder. recipe: options of random_resized_crop; empty or None without it.
    """
    store = LOADERS[loader].store
    if store is None:
        return None
    return store.crops.format(**recipe) if recipe and store.crops else store.file.format(decoder=decoder)


def store_in(given: Any) -> tuple[str, Path] | None:
    """Return (name, path) of the store that `given` has as an attribute, such as a LoadRequest; or None."""
    return next(((name, path) for name in STORES if (path := getattr(given, name)) is not None), None)


def modules_of(kind: str, name: str) -> set[str]:
    """Return the modules behind a name, such as gpufeed.models.resnet.

    For a loader, these include its store without the build, and the decoder of the same name.
    """
    require_known(kind, name, KINDS[kind], where="the registry")
    targets = [target] if (target := KINDS[kind][name].target) != name else []
    if kind == "loader":
        store = LOADERS[name].store
        targets += [store.target, store.verify, store.parts, store.leaves] if store else []
        decoder = name.removesuffix("_reader")
        targets += [DECODERS[decoder].target] if decoder in DECODERS else []
    return {target.partition(":")[0] for target in targets if target}
