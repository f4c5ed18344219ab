"""The Dockerfile, followed line by line on a bare Debian: what Docker would build, and run as its user.

It takes the CUDA 12 stack from uv's cache on this machine, or else downloads it, some GB. It needs root,
debootstrap, a mirror of Debian (that of this machine's apt, where it has the release) and the package index.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from dockerfile_fixtures import BUILD_S, NAMESPACE, RUN_S, Image, base_image, finished
from ops_fixtures import LOAD, assert_links_to, assert_loaded
from uv_fixtures import pinned_uv
from workflow_fixtures import Workflow, with_blocks

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1800)]
MIRROR = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"]
IMPORTS = "import snakemake.cli, gpufeed.benchmarks.end_to_end, gpufeed.report.publish"
ROOM = 20 * 2**30  # bytes


def lacking() -> str | None:
    """Why this machine cannot make a Debian of its own, as a sentence; None if it can."""
    if os.geteuid() != 0:
        return "Only root can make a Debian in a folder and enter it."
    missing = [name for name in ("debootstrap", "unshare", "apt-get") if shutil.which(name) is None]
    if missing:
        return f"This machine has no {' and no '.join(missing)} (Debian: apt install debootstrap)."
    if subprocess.run([*NAMESPACE, "--mount-proc", "true"], capture_output=True).returncode:
        return "This machine, a container perhaps, gives no namespace in which a Debian could be entered."
    return None


def packages_of_make_setup(root: Path) -> dict[str, str]:
    """Lends uv's cache to the image, as hard links: the variables that uv needs there."""
    cache = subprocess.run([pinned_uv(), "cache", "dir"], capture_output=True, text=True).stdout.strip()
    linked = subprocess.run(["cp", "-al", cache, root / "uv-cache"], capture_output=True)
    return {} if linked.returncode else {"UV_NO_CACHE": "false", "UV_CACHE_DIR": "/uv-cache"}


@pytest.fixture(scope="module")
def image():
    """The built image: its base by debootstrap, then every line of the Dockerfile."""
    if sentence := lacking():
        pytest.skip(sentence)
    release = re.match(r"debian:([a-z]+)-", base_image())[1]
    listed = subprocess.run(MIRROR, capture_output=True, text=True).stdout.split("\n")
    mirror = [line.split()[0] for line in listed if line.endswith(f" {release}")][:1]
    with TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < ROOM:
            pytest.skip(f"A Debian with the CUDA 12 stack needs {ROOM >> 30} GiB below {folder}.")
        root = Path(folder) / "root"
        settings = root / "etc/dpkg/dpkg.cfg.d/docker-apt-speedup"
        settings.parent.mkdir(parents=True)
        settings.write_text("force-unsafe-io\n")  # as Debian's image for Docker has it
        # in a namespace of its own: what it mounts, and starts, is gone with it, however it ends
        command = ["debootstrap", "--variant=minbase", release, str(root), *mirror]
        done = finished([*NAMESPACE, "--mount-proc", *command], BUILD_S)
        if done.returncode and not list(root.glob("var/cache/apt/archives/*.deb")):
            pytest.skip(f"Debian's packages cannot be reached: {done.stdout.strip()[-300:]}")
        assert done.returncode == 0, done.stdout[-3000:]
        root.chmod(0o755)
        Path(folder).chmod(0o755)
        image = Image(root)
        image.arguments |= {"UV_COMPILE_BYTECODE": "false", **packages_of_make_setup(root)}
        # the oldest and the newest architecture: each takes a quarter of a minute to compile for
        image.build(TORCH_CUDA_ARCH_LIST="7.5;9.0+PTX")
        yield image
        # a hundred thousand files; Python's own way takes minutes
        subprocess.run(["rm", "-rf", root], check=True)


@pytest.fixture(scope="module")
def checkout(image) -> Path:
    """A checkout of the image's user where compose.yaml mounts it, with a config of one cell."""
    folder = image.root / image.workdir.lstrip("/")
    Workflow(folder, with_blocks({"one": {"loader": "resident"}}) | {"device": "auto"})
    (folder / "results").mkdir(exist_ok=True)
    # compiled once, by root: else each process of the user compiles what it imports, and keeps nothing of it
    once = image.start(["env", "HOME=/root", "python", "-c", IMPORTS], RUN_S, folder=image.workdir)
    assert once.returncode == 0, once.stdout
    subprocess.run(["chown", "-R", "1000:1000", folder], check=True)
    return folder


def test_the_image_has_the_extension_for_the_architectures_that_it_names(image):
    about = json.loads((image.root / "opt/gpufeed/extension/gpufeed_ops.json").read_text())
    assert about["sentence"] is None
    assert about["cuda"].startswith(f"{image.arguments['CUDA']}.")
    assert (
        about["architectures"] == image.environment["TORCH_CUDA_ARCH_LIST"].split(";") == ["7.5", "9.0+PTX"]
    )
    assert_links_to(image.root / "opt/gpufeed/extension/gpufeed_ops.so", image.arguments["CUDA"])


def test_the_extension_loads_beside_torch_with_a_cuda_kernel_for_every_op(image, checkout):
    done = image.container("python", "-c", LOAD, "/opt/gpufeed/extension/gpufeed_ops.so")
    assert done.returncode == 0, done.stdout
    assert_loaded(done.stdout.strip().splitlines()[-1])


def test_a_user_without_rights_runs_the_workflow_to_the_report_and_compiles_nothing(image, checkout):
    targets = ("all", "results/extension/gpufeed_ops.so")
    done = image.container("snakemake", "--configfile", "test.yaml", "--cores", "2", "--", *targets)
    assert done.returncode == 0, done.stdout[-6000:]
    assert (checkout / "results/report.html").stat().st_uid == 1000
    ours, images = (
        folder / "gpufeed_ops.so"
        for folder in (checkout / "results/extension", image.root / "opt/gpufeed/extension")
    )
    assert ours.read_bytes() == images.read_bytes()
    assert "using /opt/gpufeed/extension" in (checkout / "results/logs/build_extension.log").read_text()


def test_the_command_of_the_image_is_the_demo(image, checkout):
    done = image.container(*image.command, "--dry-run", "-p")
    assert done.returncode == 0, done.stdout[-6000:]
    assert "results/demo/report.html" in done.stdout
