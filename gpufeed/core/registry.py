"""Every layout, store, decoder, loader, augment, model, trainer and inference backend, one line each.

The workflow imports this file while it plans, so it imports no module that it names: `load` does, in jobs. A
reference to code of one's own (gpufeed.core.references) counts as a name where a config may have one.
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
    """Where an implementation stands (`module:attribute`) and what the planner must know of it."""

    target: str


@dataclass(frozen=True)
class StoreEntry(Entry):
    """A dataset in another form, which rule build_NAME makes. target: (path, manifest), opens it.

    More targets, "" where there is none. build: (manifest, path, workers=), keeps a store that is whole.
    verify: (path, manifest, alive), reads every byte. parts: (path, manifest, split) -> the files that hold
    the split, where `file` does not. leaves: (path, manifest) -> whether samples are in the dataset's files
    alone.
    """

    file: str  # in the folder of the dataset; {decoder}: who decodes it
    build: str
    verify: str = ""
    parts: str = ""
    leaves: str = ""
    decoded: bool = False  # holds pixels, three bytes each, so that its loaders decode nothing
    crops: str = ""  # another file for recipe random_resized_crop; {short_side}: an option of it


@dataclass(frozen=True)
class DecoderEntry(Entry):
    device: str = "any"  # any | cuda
    reads: str = "files"  # files, or a store, which it decodes on a GPU where there is one
    extension: bool = False  # decodes by gpufeed.native, which its jobs wait for


@dataclass(frozen=True)
class AugmentEntry(Entry):
    device: str = "any"  # any | cuda
    does: str = "augmented"  # in words: augments that do the same to the pixels are compared
    where: str = "device"  # device: whole batches | sample: where each was decoded | loader: in its pipeline


@dataclass(frozen=True)
class RecipeEntry(Entry):
    """What happens to pixels after decoding; no target: the cell's augment does it."""

    of_loader: bool = False  # the loader cuts a window out of each image and resizes it


@dataclass(frozen=True)
class ModelEntry(Entry):
    sized: bool = False  # made for images of one size, which it must be told


@dataclass(frozen=True)
class BackendEntry(Entry):
    precisions: tuple[str, ...]  # of the arithmetic, a row each; int8 and fp8 have the rest in another one


ON_DEVICE = ("none", "torch", "chain", "fused")  # augments of whole batches, for every loader
PLACES = {"device": "torch", "sample": "cpu"}  # of an augment of one's own: like which one it has a loader


@dataclass(frozen=True)
class LoaderEntry(Entry):
    workers: str = "never"  # never | optional | required
    threads: bool = False  # its workers are threads of the process
    anew: bool = False  # its workers start anew with each epoch
    stays: bool = False  # its workers stay for all epochs
    own_process: bool = False  # with persistent_workers its threads have a process that stays
    reads: str = "files"  # files, or a store
    device: str = "any"  # any | cuda
    extension: bool = False  # decodes by gpufeed.native, which its jobs wait for
    resizes: bool = True  # brings images to the size that their source asks for, if it asks for one
    augments: tuple[str, ...] = (*ON_DEVICE, "cpu")
    windows: str = "never"  # of recipe random_resized_crop. given: takes ours | own: draws its own | never
    decoders: tuple[str, ...] = ()  # of its worker processes, of which a cell names one
    engines: bool = False  # leaves a share of the files to a GPU's JPEG engines
    replacement: bool = False  # draws with replacement: an epoch has as many samples, not each of them
    makes: bool = False  # also loads samples that no file holds (MADE)
    ceiling: bool = False  # repeats one batch: bounds the others, is no pipeline itself

    @property
    def store(self) -> StoreEntry | None:
        """The store that it reads."""
        return STORES.get(self.reads)

    @property
    def decoded(self) -> bool:
        """Whether it reads pixels that were decoded before."""
        return self.store is not None and self.store.decoded

    def has_place_for(self, augment: str) -> bool:
        """Return whether an augment runs with it; one of one's own does where a registered one does."""
        return (PLACES[AUGMENTS[augment].where] if is_reference(augment) else augment) in self.augments

    @property
    def reads_files(self) -> bool:
        """Whether it reads image files: all, or those that its store may leave."""
        return self.store is None or bool(self.store.leaves)


class Open(dict):
    """Entries by name; a reference is one of them, too, though none is listed. entry: makes that of one."""

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
    """Return the entry of a loader of one's own."""
    choices = {"workers": ("never", "optional", "required"), "reads": ("files", *STORES)}
    choices |= {"windows": ("never", "given", "own"), "device": ("any", "cuda")}
    choices |= {"augments": tuple(AUGMENTS), "decoders": HOST_DECODERS}
    given = declared_entry(reference, LoaderEntry, choices)
    return LoaderEntry(reference, **given)


def augment_entry(reference: str) -> AugmentEntry:
    """Return the entry of an augment of one's own, which is like no other."""
    choices = {"device": ("any", "cuda"), "where": tuple(PLACES)}
    given = declared_entry(reference, AugmentEntry, choices)
    return AugmentEntry(reference, does=f"augmented by {reference}", **given)


# of samples, one after the other on the host
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
LAYOUTS = Open(lambda name: Entry("gpufeed.datasets.user_dataset:reorganise"), LAYOUTS)

MADE = ("noise",)  # layouts whose images no file holds: Manifest.pixels makes them from the sample ids
FILES = "files"  # option of a Dataset by reference: its samples are files, which all loaders read
DERIVED = ("mosaic", "gray_idx")  # layouts made of the images of another source, which `of` names

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

# of samples, one after the other in worker processes, and of whole batches; the others name what they take
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
LOADERS = Open(loader_entry, LOADERS)

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
AUGMENTS = Open(augment_entry, AUGMENTS)

RECIPES = {
    "crop_flip": RecipeEntry(""),
    "random_resized_crop": RecipeEntry(
        "gpufeed.augment.random_resized_crop:RandomResizedCrop", of_loader=True
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
MODELS = Open(lambda name: ModelEntry(name, sized=True), MODELS)

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
    "onnxruntime_int8": BackendEntry(
        "gpufeed.benchmarks.inference.backends.onnx_runtime:prepare_int8", ("int8",)
    ),
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
    """The object registered as `name` under `kind`; imports its module.

    what: which of the entry's targets. Raises GpufeedError for a name that is not registered.
    """
    entries = KINDS[kind]
    require_known(kind, name, entries, where="the registry")
    target = getattr(entries[name], what)
    if target == name:  # a reference
        return resolve(name)
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def fetch(kind: str, name: str) -> Any:
    """As `load`; raises Skip if a package that the object's module imports is not installed here."""
    try:
        return load(kind, name)
    except ModuleNotFoundError as error:
        raise lacking(kind, name, error) from error


def lacking(kind: str, name: str, error: ModuleNotFoundError) -> Exception:
    """Return the Skip for a package that the node lacks; the error itself where it is a module of ours."""
    if (error.name or "gpufeed").split(".")[0] == "gpufeed":
        return error
    missing = f"{kind.capitalize()} {name} needs the package {error.name}, which this node lacks"
    return Skip(f"{missing}: {install(error.name)}.")


def is_made(source: Mapping[str, Any]) -> bool:
    """Return whether no file holds the images of a source, or of what a dataset is made of."""
    layout = source.get("layout")
    return layout in MADE or (is_reference(layout) and not source.get("options", {}).get(FILES))


def takes_gpu(decoder: str) -> bool:
    """Whether a decoder decodes on a GPU where there is one."""
    return DECODERS[decoder].device == "cuda" or DECODERS[decoder].reads in STORES


def takes_extension(decoder: str) -> bool:
    """Whether a decoder, or a reader of strips, decodes by the library of gpufeed.native."""
    return decoder in DECODERS and DECODERS[decoder].extension


def store_file(loader: str, decoder: str, recipe: Mapping[str, Any] | None) -> str | None:
    """Return the file that a loader reads in the folder of a dataset; None without a store.

    decoder: who builds caches. recipe: options of random_resized_crop; empty or None without it.
    """
    store = LOADERS[loader].store
    if store is None:
        return None
    return store.crops.format(**recipe) if recipe and store.crops else store.file.format(decoder=decoder)


def store_in(given: Any) -> tuple[str, Path] | None:
    """Return (name, path) of the store that `given` has an attribute for, such as a LoadRequest; or None."""
    return next(((name, path) for name in STORES if (path := getattr(given, name)) is not None), None)


def modules_of(kind: str, name: str) -> set[str]:
    """Return the modules behind a name, such as gpufeed.models.resnet.

    Those of a loader's store, without its build, and of the decoder that the loader is called as or after.
    """
    require_known(kind, name, KINDS[kind], where="the registry")
    targets = [target] if (target := KINDS[kind][name].target) != name else []
    if kind == "loader":
        store = LOADERS[name].store
        targets += [store.target, store.verify, store.parts, store.leaves] if store else []
        decoder = name.removesuffix("_reader")
        targets += [DECODERS[decoder].target] if decoder in DECODERS else []
    return {target.partition(":")[0] for target in targets if target}
