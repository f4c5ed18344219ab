"""What loaders/base.py promises, for every loader in the registry. tests/cuda runs the same on a GPU."""

import threading
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker

import numpy as np
import psutil
import pytest
import torch
from image_fixtures import (
    MEAN,
    STD,
    encode,
    ids_of,
    request,
    write_beton,
    write_cache,
    write_dataset,
    write_shards,
    write_strips,
)
from process_fixtures import fork_spdls_processes, left_after

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import LOADERS, load
from gpufeed.decoders.base import EXACT, Tolerance
from gpufeed.decoders.fallback import resize_tolerance
from gpufeed.loaders.base import Batch, Loader, epoch_order
from gpufeed.loaders.pixel_tolerance import pixel_source
from gpufeed.stores.cache_format import open_cache


@dataclass(frozen=True)
class Case:
    """A registered loader with one setting of its workers."""

    name: str
    workers: int = 0
    persistent: bool = False

    @property
    def entry(self):
        return LOADERS[self.name]

    def __str__(self):
        return f"{self.name}-w{self.workers}{'p' if self.persistent else ''}"


NEVER_PERSISTENT = ("ffcv", "spdl_processes", "webdataset_resampled")  # they do not read `persistent_workers`


def cases() -> list[Case]:
    found = []
    for name, entry in LOADERS.items():
        if (
            entry.workers != "required" and name != "ffcv"
        ):  # which compiles anew: without workers in test_ffcv.py
            found.append(Case(name))
        if entry.workers != "never":
            found.append(Case(name, 2))
            if name not in NEVER_PERSISTENT:
                found.append(Case(name, 2, persistent=True))
    return found


def in_spdls_processes(case: Case) -> bool:
    """Whether SPDL's processes make its batches: those of spdl's threads, as test_spdl_process.py shows."""
    return case.name == "spdl_processes" or (case.name == "spdl" and case.persistent)


def each(of: list[Case]):
    """A case a test; those that start a new Python for every worker, or compile, take seconds."""

    def marks(case: Case):
        return pytest.mark.slow if case.name == "ffcv" or in_spdls_processes(case) else ()

    marked = [pytest.param(case, marks=marks(case)) for case in of]
    return pytest.mark.parametrize("case", marked, ids=str)


every_loader = each(cases())
# for what does not depend on how many workers there are and how long they live: each takes time to start
once = [Case(case.name, min(case.workers, 1)) for case in cases() if not case.persistent]
every_loader_once = each(once)
# for what follows from the batches
every_pipeline_once = each([case for case in once if not (case.entry.ceiling or in_spdls_processes(case))])


@pytest.fixture
def device():
    return torch.device("cpu")


@pytest.fixture(autouse=True)
def forked(request, device, monkeypatch):
    """Starts SPDL's processes in less time where none uses CUDA; test_spdl_process.py spawns them, too."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    if case and in_spdls_processes(case) and device.type == "cpu":
        pytest.importorskip("spdl.pipeline")
        fork_spdls_processes(monkeypatch)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    manifest = write_dataset(tmp_path_factory.mktemp("tiny"))
    write_strips(manifest)
    write_shards(manifest)
    write_beton(manifest)
    return manifest, write_cache(manifest)


@pytest.fixture(scope="module")
def several_sizes(tmp_path_factory):
    """As the dataset above, of images of three sizes that are to be brought to a fourth."""
    manifest = write_dataset(tmp_path_factory.mktemp("mixed"))
    for i, path in enumerate(manifest.paths()):
        height, width = ((8, 8), (16, 7), (10, 30))[i % 3]
        random = np.random.default_rng(i)
        path.write_bytes(encode(random.integers(0, 256, (height, width, 3), dtype=np.uint8)))
        manifest.table.loc[i, ["height", "width"]] = (height, width)
    manifest.info = replace(manifest.info, resize=(9, 12))
    manifest.write()
    write_shards(manifest)
    write_beton(manifest)
    return manifest, write_cache(manifest)


@pytest.fixture
def make(dataset, device, open_loader):
    """(case, changes of the request) -> an open loader. of: another dataset."""

    def make_loader(case: Case, of=None, **changes):
        manifest, cache = of or dataset
        settings = {
            "device": device,
            "workers": case.workers,
            "persistent_workers": case.persistent,
            "prefetch_factor": 2 if case.workers else None,
            **changes,
        }
        return open_loader(case.name, request(manifest, cache, **settings))

    return make_loader


def tolerance(case: Case, loader: Loader, dataset) -> Tolerance:
    """How far pixels may be from Pillow's: not at all where files are lossless, else as the gate allows."""
    manifest, cache = dataset
    lossless = manifest.table["path"].str.endswith(".png").all()
    return EXACT if lossless else pixel_source(case.name, loader, cache).tolerance


def expected_order(loader, epoch: int) -> list[int]:
    r = loader.request
    if loader.own_order:
        state = loader.state_dict()
        loader.load_state_dict({**state, "epoch": epoch, "next_batch": 0})
        promised = loader.order()
        loader.load_state_dict(state)
        return promised.tolist()
    return epoch_order(loader.split_ids, r.seed, epoch, r.shuffle, r.rank, r.world_size).tolist()


def check_batch(batch: Batch, allowed: Tolerance, dataset, device: torch.device) -> None:
    """Layout, dtype, device, pixels and labels of one uint8 batch."""
    manifest, reference = dataset[0], open_cache(dataset[1], dataset[0])
    assert batch.images.shape == (len(batch.ids), *manifest.image_size(), 3)
    assert batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous()
    assert batch.labels.dtype == batch.ids.dtype == torch.int64
    for tensor in (batch.images, batch.labels, batch.ids):
        assert tensor.device.type == device.type
    ids = batch.ids.tolist()
    pairs = zip(batch.images.cpu().numpy(), reference[ids], strict=True)
    assert [wrong for found, right in pairs if (wrong := allowed.exceeded(found, right))] == []
    assert batch.labels.tolist() == manifest.labels()[ids].tolist()
    assert batch.load_ms >= 0


@every_loader
def test_three_epochs(case, make, dataset, device):
    loader = make(case)
    for epoch in range(3):
        batches = list(loader)
        assert [len(batch.ids) for batch in batches] == [5, 5, 5, 5, 3]
        assert len(loader) == 5
        assert loader.epoch == epoch + 1
        for batch in batches:
            check_batch(batch, tolerance(case, loader, dataset), dataset, device)
        if case.entry.ceiling:
            first = expected_order(loader, 0)[:5]
            assert all(batch.ids.tolist() == first[: len(batch.ids)] for batch in batches)
            continue
        assert not loader.promises_order or ids_of(batches) == expected_order(loader, epoch)
        assert set(ids_of(batches)) <= set(loader.split_ids.tolist())
        assert case.entry.replacement or sorted(ids_of(batches)) == loader.split_ids.tolist()


@every_loader_once
def test_images_of_several_sizes_come_in_one_or_are_refused(case, make, several_sizes, device):
    if not case.entry.resizes:
        if case.entry.reads == "strips":
            pytest.skip("the planner leaves it out, and no strips are made for it")
        with pytest.raises(GpufeedError, match="to be resized to 9 x 12 pixels"):
            make(case, of=several_sizes)
        return
    loader = make(case, of=several_sizes)
    allowed = resize_tolerance((9, 12)) if case.name.startswith("dali") else EXACT
    for epoch in range(2):
        batches = list(loader)
        for batch in batches:
            check_batch(batch, allowed, several_sizes, device)
        if loader.promises_order and not case.entry.ceiling:
            assert ids_of(batches) == expected_order(loader, epoch)


@every_pipeline_once
def test_order_follows_seed_and_epoch(case, make):
    loader, again, other = make(case), make(case), make(case, seed=4)
    epochs = [ids_of(list(loader)) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert [ids_of(list(again)) for _ in range(2)] == epochs
    assert ids_of(list(other)) != epochs[0]
    unshuffled = make(case, shuffle=False, split="test")
    first, second = (ids_of(list(unshuffled)) for _ in range(2))
    assert first == second
    assert (sorted(first) if loader.own_order else first) == loader.request.manifest.ids("test").tolist()


@every_pipeline_once
def test_an_order_of_its_own_is_told(case, make):
    loader = make(case)
    if not loader.promises_order:
        pytest.skip("has no order that is known before an epoch")
    r = loader.request
    usual = epoch_order(loader.split_ids, r.seed, 0, r.shuffle, r.rank, r.world_size).tolist()
    assert (loader.order().tolist() == usual) == (loader.own_order is None)
    assert loader.own_order is None or loader.own_order.endswith(".")


@every_pipeline_once
def test_ranks_share_the_epoch(case, make):
    ranks = [make(case, rank=rank, world_size=3) for rank in range(3)]
    for loader in ranks:
        loader.load_state_dict({"epoch": 1, "next_batch": 0, "seed": 3})
    shares = [ids_of(list(loader)) for loader in ranks]
    assert sorted(len(share) for share in shares) == [7, 8, 8]
    if case.entry.replacement:
        assert len({tuple(share) for share in shares}) == 3  # each draws from all, apart from the others
        return
    assert sorted(i for share in shares for i in share) == ranks[0].split_ids.tolist()
    for rank, share in enumerate(shares):
        assert sorted(share) == sorted(epoch_order(ranks[0].split_ids, 3, 1, True, rank, 3).tolist())


@every_loader
def test_state_goes_on_in_mid_epoch(case, make):
    loader = make(case)
    if loader.promises_order and not case.entry.ceiling:  # as test_three_epochs shows
        expected = [expected_order(loader, epoch) for epoch in range(3)]
    else:
        whole = make(case)
        expected = [ids_of(list(whole)) for _ in range(3)]
    list(loader)
    first = []
    for batch in loader:
        first.append(batch)
        if len(first) == 2:
            break
    state = loader.state_dict()
    assert state == {"epoch": 1, "next_batch": 2, "seed": 3}
    fresh = make(case)
    fresh.load_state_dict(state)
    if case.entry.replacement:  # another stream begins there, of as many samples
        assert ids_of(first) + ids_of(list(loader)) == expected[1]
        assert [len(batch.ids) for batch in fresh] == [5, 5, 3]
        assert fresh.state_dict() == loader.state_dict()
        return
    for continued in (loader, fresh):
        assert ids_of(first) + ids_of(list(continued)) == expected[1]
        assert ids_of(list(continued)) == expected[2]
    with pytest.raises(ValueError, match="seed"):
        make(case, seed=9).load_state_dict(state)


@every_loader
def test_early_exit_leaves_nothing_behind(case, make):
    resource_tracker.ensure_running()  # Python's own, which stays once a process was spawned
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    threads = set(threading.enumerate())
    loader = make(case)
    iterator = iter(loader)
    next(iterator)
    del iterator
    for _ in loader:
        break
    loader.close()
    loader.close()
    assert not left_after(10, [p for p in psutil.Process().children(recursive=True) if p.pid not in before])
    assert [t.name for t in threading.enumerate() if t.name.startswith("gpufeed") and t not in threads] == []


@every_loader_once
def test_cpu_augment_runs_in_the_loader(case, make, dataset, device):
    if "cpu" not in case.entry.augments:
        pytest.skip("has no single samples to run it on, so the planner leaves it out")
    from gpufeed.augment.cpu import CpuAugment

    augment = CpuAugment(MEAN, STD, 3, {"crop_padding": 2})
    reference = np.array(open_cache(dataset[1], dataset[0]))
    loader = make(case, sample_transform=augment)
    allowed = tolerance(case, loader, dataset).max / 255 / min(STD)
    for epoch in range(2):
        for batch in loader:
            assert batch.images.shape == (len(batch.ids), 3, *dataset[0].image_size())
            assert batch.images.dtype == torch.float32
            assert batch.images.device.type == device.type
            drawn_in = 0 if case.entry.ceiling else epoch
            expected = [augment(torch.from_numpy(reference[i]), i, drawn_in) for i in batch.ids.tolist()]
            assert (batch.images.cpu() - torch.stack(expected)).abs().max() <= allowed


@every_loader_once
def test_transfer_is_told_where_something_is_copied(case, make, device):
    loader = make(case)
    batches = list(loader)
    ready_there = (
        case.name in ("resident", "resident_jpeg", "replay", "strips", "cuda_jpeg")
        or case.entry.device == "cuda"
        or getattr(loader, "reads", False)  # DALI's reader: it copies within its pipeline
    )
    if device.type == "cpu" or ready_there:
        assert all(batch.transfer is None for batch in batches)
    else:
        torch.cuda.synchronize()
        assert all(batch.transfer.ms() > 0 for batch in batches)


@every_pipeline_once
def test_a_step_that_gathers_gets_the_same_batches(case, make):
    """`ungathered` lets a loader say where its images are; whoever asks for the images gets them."""
    for plain, other in zip(make(case), make(case, ungathered=True), strict=True):
        found = other.source if isinstance(other.source, torch.Tensor) else other.source.gathered()
        for images in (found, other.images):
            assert images.shape == other.source.shape
            assert torch.equal(images, plain.images)
        assert torch.equal(other.labels, plain.labels)
        assert torch.equal(other.ids, plain.ids)


@every_pipeline_once
def test_a_clone_keeps_its_images_and_a_part_is_its_first_ones(case, make):
    for settings in ({}, {"ungathered": True}):
        batches = iter(make(case, **settings))
        batch = next(batches)
        kept, images = batch.clone(), batch.images.clone()
        list(batches)
        assert torch.equal(kept.images, images)
        part = kept.first(3)
        assert torch.equal(part.images, images[:3])
        assert (len(part.labels), part.ids.tolist()) == (3, kept.ids[:3].tolist())


@every_loader_once
def test_global_random_numbers_are_left_alone(case, make):
    loader = make(case)
    torch.manual_seed(1)
    np.random.seed(1)
    expected = (torch.rand(1), np.random.rand())
    torch.manual_seed(1)
    np.random.seed(1)
    list(loader)
    list(loader)
    assert (torch.rand(1), np.random.rand()) == expected


@every_loader_once
def test_too_many_ranks_are_refused(case, dataset, device):
    few = replace(request(*dataset, device=device, workers=case.workers), split="test", world_size=7)
    with pytest.raises(GpufeedError, match="6 samples in split 'test' for 7 ranks"):
        load("loader", case.name)(few)
