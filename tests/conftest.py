import gc
import logging
import os
import sys
import zipfile
from pathlib import Path

# beside another process of tests: one thread here, and none that spins while it waits, in jobs too
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from data_fixtures import REAL_DATA, REPOSITORY, Server
from hypothesis import HealthCheck, settings
from lease_fixtures import made
from ops_fixtures import blank_process, planted_node
from photograph_fixtures import write_photographs

# tests of one folder use helpers in those of another: their names are unique
sys.path += sorted({str(path.parent) for path in (Path(__file__).parent / "unit").rglob("test_*.py")})
sys.path.append(str(REPOSITORY / "results/reference"))  # programs that are no part of the package

CUDA_TESTS = Path(__file__).parent / "cuda"  # all of them are marked `cuda`

# a busy machine is no failure
settings.register_profile("gpufeed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpufeed")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collects without searches for garbage: all that is made stays, and they take a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files unread in which no test can be one of those asked for: reading all takes a minute."""
    if "not cuda" in config.option.markexpr and collection_path == CUDA_TESTS:
        return True
    if config.option.markexpr != "alone" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return True if "mark.alone" not in text and "import *" not in text else None


@pytest.fixture(autouse=True, scope="module")
def swept_heap():
    """Leaves the collected tests, and what earlier files have imported, out of searches for garbage: with
    them one search takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_log_handlers():
    """Takes back what a test, or a library in it (Hydra), has added to the root logger: it writes to streams
    that end with the test."""
    before = logging.root.handlers[:]
    yield
    for handler in set(logging.root.handlers) - set(before):
        if not type(handler).__module__.startswith("_pytest"):
            logging.root.removeHandler(handler)


@pytest.fixture
def server(monkeypatch):
    """A local HTTP server; proxies of the environment are left out."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


@pytest.fixture
def lease_folder(tmp_path, monkeypatch) -> Path:
    """Where the locks of a test are; not made yet."""
    monkeypatch.setenv("GPUFEED_LEASES", str(tmp_path / "leases"))
    return tmp_path / "leases"


@pytest.fixture
def taker(lease_folder):
    """Makes processes that take GPUs."""
    yield from made(lease_folder)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real images, which is not in the repository."""
    if not REAL_DATA.is_dir():
        pytest.skip("no folder ../shared/data with real images beside the repository")
    return REAL_DATA


@pytest.fixture(scope="session")
def real_files(real_data):
    """(archive, ending of names) -> contents of those of its files; skips the test without the archive."""

    def contents(archive: str, ending: str = "") -> list[bytes]:
        if not (path := real_data / archive).is_file():
            pytest.skip(f"no {archive} in {real_data}")
        with zipfile.ZipFile(path) as opened:
            names = [name for name in opened.namelist() if name.endswith(ending) and not name.endswith("/")]
            return [opened.read(name) for name in names]

    return contents


@pytest.fixture(scope="session")
def photographs(tmp_path_factory) -> Path:
    """A folder of 60 photographs made on the spot, of many sizes and kinds; not to be changed."""
    return write_photographs(tmp_path_factory.mktemp("photographs"))


@pytest.fixture(scope="module")
def extension():
    """The library, compiled once into torch's extension folder; skips where a node lacks a compiler."""
    from gpufeed import native  # imports torch

    if sentence := native.load().sentence:
        pytest.skip(sentence)


@pytest.fixture
def one_thread():
    """One thread for torch, as in a process that a test starts; small steps take longer with more."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def open_loader():
    """(name, request) -> that loader, open until the test ends; skips it where this node lacks something."""
    from image_fixtures import opener  # imports torch

    with opener() as open_loader:
        yield open_loader


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with a C++ compiler and ninja, without a GPU; installs an nvcc of a version in a folder."""
    return planted_node(tmp_path, monkeypatch)


@pytest.fixture
def process(monkeypatch):
    """A process that has loaded no library of ours; loading only notes which one it would be."""
    return blank_process(monkeypatch)
