"""What pip installs of the gpufeed.native extension, with torch in the build and without."""

import ensurepip
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from data_fixtures import REPOSITORY
from wheel_fixtures import WHEEL, copy_sources

from gpufeed.native import loading
from gpufeed.native.build import READY
from gpufeed.system.commit import checkout, write


def build_wheel(folder: Path, **variables: str) -> tuple[str, str, set[str]]:
    """Build a wheel in a folder of sources; returns what was said, and its name and files, now in `site`."""
    command = [sys.executable, "-c", WHEEL]
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
        return done.stdout, wheel.name, set(archive.namelist())


@pytest.mark.slow
def test_a_wheel_holds_the_library_and_the_sources_where_the_build_has_torch(tmp_path, extension):
    """The library is that of this process, which a build takes where it would compile the same."""
    copy_sources(tmp_path)
    _, wheel, names = build_wheel(tmp_path, **{READY: str(loading.current.library.parent)})
    assert {"gpufeed/native/csrc/cpu.cpp", "gpufeed/native/csrc/cuda/bias_gelu.cu"} <= names
    assert "gpufeed/native/gpufeed_ops.so" in names
    assert not wheel.endswith("-none-any.whl")
    code = "from gpufeed import native; print(native.load(), native.loading.current.library)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert str(tmp_path / "site/gpufeed/native/gpufeed_ops.so") in loaded.stdout


FAILS = """#!/bin/sh
case "$*" in *.cpp*) echo "cpu.cpp:1: error: nothing compiles here"; exit 1;; esac
exec c++ "$@"
"""


@pytest.mark.slow
def test_a_wheel_is_built_without_the_library_where_the_compiler_fails(tmp_path):
    copy_sources(tmp_path)
    write(tmp_path, "0123abc", False)  # as in code that bundle.code packed: the wheel has its commit
    compiler = tmp_path / "failing-c++"
    compiler.write_text(FAILS)
    compiler.chmod(0o755)
    variables = {READY: "", "CXX": str(compiler), "TORCH_EXTENSIONS_DIR": str(tmp_path / "torch")}
    said, _, names = build_wheel(tmp_path, **variables)
    assert "without its gpufeed.native extension, which is compiled at its first use" in said
    assert "nothing compiles here" in said
    assert checkout(tmp_path / "site") == ("0123abc", False)
    (tmp_path / "site/gpufeed/repository/config/config.yaml").write_text("repeats: 1\n")
    assert checkout(tmp_path / "site") == ("0123abc", True)
    assert "gpufeed/native/csrc/cpu.cpp" in names
    assert not {"gpufeed/native/gpufeed_ops.so", "gpufeed/native/gpufeed_ops.json"} & names


@pytest.fixture
def with_setuptools(tmp_path):
    """Runs setup.py with an old setuptools that Python brings, and that says it is another `version`."""

    def run(*arguments, version):
        places = [Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")]
        wheels = [wheel for place in places for wheel in place.glob("setuptools-[1-6]*.whl")]
        if not wheels:
            pytest.skip("this Python brings no setuptools, as it does from 3.12 on")
        folder = tmp_path / "site"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(folder)
        (folder / "setuptools/version.py").write_text(f"__version__ = {version!r}\n")
        return subprocess.run(
            [sys.executable, "setup.py", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )

    (tmp_path / "setup.py").write_bytes((REPOSITORY / "setup.py").read_bytes())
    return run


@pytest.mark.parametrize("version", ["9.1", "76.1.0.post2"])
def test_setup_with_a_setuptools_that_is_too_old_says_what_to_upgrade(tmp_path, with_setuptools, version):
    (tmp_path / "pyproject.toml").write_bytes((REPOSITORY / "pyproject.toml").read_bytes())
    done = with_setuptools("install", version=version)
    assert (done.returncode, done.stdout) == (1, "")
    found, expected, remedy = done.stderr.splitlines()
    assert found.startswith(f"found: setuptools {version}")
    (needed,) = tomllib.loads((tmp_path / "pyproject.toml").read_text())["build-system"]["requires"]
    assert expected == f"expected: setuptools {needed.removeprefix('setuptools>=')} or newer"
    assert f"--upgrade '{needed}'" in remedy


def test_setup_with_a_setuptools_that_is_new_enough_goes_on(with_setuptools):
    done = with_setuptools("--version", version="77.0.0")  # no pyproject.toml, which this one could not read
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0.0.0\n"
