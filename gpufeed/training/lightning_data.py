"""LightningDataModules of the datasets for your own training script, with any loader of this project.

dm = TinyImageNetDataModule("data", batch_size=128, num_workers=4, loader="resident")
Trainer(max_epochs=10).fit(module, datamodule=dm)
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from pytorch_lightning import LightningDataModule

from gpufeed.core.cell_matrix import check_names, content
from gpufeed.core.cells import Cell, impossible, settle
from gpufeed.core.compose import shipped
from gpufeed.core.config import check_axes, check_hyper, read_hyper
from gpufeed.core.config_sources import check_source
from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.registry import LOADERS
from gpufeed.datasets.manifest import Manifest
from gpufeed.loaders.base import make_loader
from gpufeed.system.devices import resolve_device
from gpufeed.training.ensure_inputs import dataset, shelf_of, stores
from gpufeed.training.own_loop import Batches, whole
from gpufeed.training.runtime_context import Stores, load_request, make_augment


class ImageDataModule(LightningDataModule):
    """A source of config/config.yaml, downloaded, checked and prepared, behind a loader of this project.

    A subclass names the source as `dataset`; for your own data, `source` holds a row of `sources`. Each
    process of a Trainer gets its share of the training and evaluation images, without a sampler. Epochs are
    counted for as long as the data module is used, and a checkpoint keeps the position.
    """

    dataset: ClassVar[str]
    source: ClassVar[Mapping[str, Any] | None] = None

    def __init__(
        self,
        data_dir: str | Path = "data",
        batch_size: int = 128,
        num_workers: int = 4,
        pin_memory: bool = True,
        *,
        loader: str = "dataloader_workers",
        augment: str = "torch",
        augment_options: Mapping[str, Any] | None = None,
        prefetch_factor: int | None = None,
        seed: int = 0,
        archives: tuple[str | Path, ...] = (),
    ):
        """Check the settings.

        data_dir: folder of all datasets, with a subfolder for this one. num_workers: 0 decodes in the
        training process; loaders without workers ignore it. augment: for training images; augment_options
        override config/hydra/augment. archives: folders that are searched for the dataset's files before a
        download, beside data_dir, its parent and those of the config.

        Raises GpufeedError for impossible options.
        """
        super().__init__()
        self.data_dir, self.batch_size, self.num_workers = (
            Path(data_dir).expanduser(),
            batch_size,
            num_workers,
        )
        self.pin_memory, self.prefetch_factor, self.seed = pin_memory, prefetch_factor, seed
        self.loader, self.augment, self.augment_options = loader, augment, dict(augment_options or {})
        given = (Path(folder).expanduser() for folder in archives)
        self.archives = (self.data_dir, self.data_dir.absolute().parent, *given)
        self.manifest: Manifest | None = None
        self.device, self.share = torch.device("cpu"), {"rank": 0, "num_replicas": 1}
        self._opened: dict[str, Batches] = {}
        self._state, self._resumed = None, False  # of the training batches; whether to resume in mid-epoch
        if self.source is not None:
            check_source(self.source, type(self).__name__)
        self.cell("auto")

    def cell(self, device: str) -> Cell:
        """Return the settings, checked for a kind of device; raise GpufeedError if it cannot run them."""
        where, config = type(self).__name__, self._config()
        in_process = self.loader == "dataloader_workers" and self.num_workers == 0
        axes = {"dataset": self.dataset, "loader": "dataloader_sync" if in_process else self.loader}
        axes["augment"] = self.augment
        choices = [name for name, entry in LOADERS.items() if not entry.ceiling]  # ceilings repeat one batch
        require_known("loader", self.loader, choices, where)
        check_names(axes, where, config["sources"])
        needed = {"batch_size": self.batch_size, "seed": self.seed}
        check_axes(needed, where, workers=self.num_workers, prefetch_factor=self.prefetch_factor)
        entry = LOADERS[axes["loader"]]
        options = {**read_hyper("augment", self.augment), **self.augment_options}
        check_hyper("augment", self.augment, options, where)
        cell = Cell(
            "by_hand",
            **axes,
            batch_size=self.batch_size,
            workers=0 if entry.workers == "never" else self.num_workers,
            prefetch_factor=self.prefetch_factor,
            pin_memory=self.pin_memory,
            persistent_workers=not entry.anew,
            device=device,
            seed=self.seed,
            source=content(config, self.dataset),
            hyper={"augment": options},
        )
        if sentence := impossible(settle(cell)):
            said = sentence.replace("the config says device", "the device is")
            raise GpufeedError(said, "a combination that can exist", f"change one of the two in {where}")
        return settle(cell)

    def _config(self) -> dict:
        own = {} if self.source is None else {self.dataset: self.source}
        return {**shipped(), "sources": {**shipped()["sources"], **own}}

    def _provided(self) -> tuple[Manifest, Stores]:
        """Return the loader's inputs; make those that are missing."""
        archives = [*self.archives, *shipped()["archives"]]
        shelf = shelf_of({**shipped(), "data_folder": self.data_dir, "archives": archives})
        path = dataset(self.dataset, self._config(), shipped(), shelf)
        return Manifest.read(path), stores(self.cell("auto"), path, shelf)

    def prepare_data(self) -> None:
        """Download, check and prepare the dataset, and build what the loader reads, if it is missing."""
        self._provided()

    def setup(self, stage: str | None = None) -> None:
        """Find the dataset, the device and this process's share; without a Trainer: device `auto`, all."""
        self._close()
        self.manifest, self.stores = self._provided()
        self._resumed = False
        if self.trainer is None:
            self.device = resolve_device("auto")
        else:
            self.device = self.trainer.strategy.root_device
            self.share = self.trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        self.cell(self.device.type)

    @property
    def classes(self) -> list[str]:
        """Return the names of the classes, by label."""
        return self._prepared().info.classes

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def dims(self) -> tuple[int, int, int]:
        """Return (3, height, width) of an image."""
        return (3, *self._prepared().image_size())

    def _prepared(self) -> Manifest:
        if self.manifest is None:
            raise GpufeedError(
                f"{type(self).__name__} before setup()",
                "prepare_data() and setup() first, as a Trainer calls them",
                "call both first; a second call repeats no work",
            )
        return self.manifest

    def train_dataloader(self) -> Batches:
        return self._open("train")

    def val_dataloader(self) -> Batches:
        """Return the held-out images, in order and not augmented."""
        return self._open("val")

    def test_dataloader(self) -> Batches:
        """Return the same images as val_dataloader: no dataset here has labels for a third split."""
        return self._open("test")

    def _open(self, name: str) -> Batches:
        manifest, training = self._prepared(), name == "train"
        self._close(name)
        cell = self.cell(self.device.type)
        augment = make_augment(cell.augment if training else "none", cell, manifest, self.seed)
        request = replace(
            load_request(cell, manifest, self.stores, self.device, self.seed, augment),
            split="train" if training else manifest.info.evaluation_split,
            shuffle=training,
            rank=self.share["rank"],
            world_size=self.share["num_replicas"],
            ungathered=False,
        )
        loader = make_loader(cell.loader, request)
        batches = Batches(loader, augment if augment.where == "device" else None)
        self._opened[name] = batches  # before open(), so that it is closed if that fails
        loader.open()
        if training and self._state is not None:
            batches.load_state_dict(self._state if self._resumed else whole(self._state))
            self._resumed = False
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the epoch; Lightning restores a loader's own state only in mid-epoch."""
        training = self._opened.get("train")
        return {"train": self._state if training is None else training.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state, self._resumed = state_dict["train"], True

    def teardown(self, stage: str | None = None) -> None:
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        self._close()

    def _close(self, *names: str) -> None:
        """Close the open loaders of these names, by default all."""
        for name in names or tuple(self._opened):
            if (batches := self._opened.pop(name, None)) is not None:
                if name == "train":
                    self._state = batches.state_dict()
                batches.end()
                batches.loader.close()


class TinyImageNetDataModule(ImageDataModule):
    """Tiny ImageNet: 64 x 64 pixels, labels in the order of wnids.txt, `val` held out."""

    dataset = "tiny_imagenet"


class CIFAR10DataModule(ImageDataModule):
    """CIFAR-10: 32 x 32 pixels, 10 classes."""

    dataset = "cifar10"


class FashionMNISTDataModule(ImageDataModule):
    """Fashion-MNIST: 28 x 28 pixels, 10 classes; gray values in three equal channels."""

    dataset = "fashion_mnist"
