"""A node without a compiler skips the augment that is compiled there."""

import os
import sysconfig

import pytest
import torch
from image_fixtures import MEAN, STD

from gpufeed.core.errors import Skip
from gpufeed.native import jit_toolchain


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with nothing but Python's header; makes a program there."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include/Python.h").write_text("")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path / "include")})

    def program(name):
        path = tmp_path / "bin" / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    return program


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_any_compiler_will_do(node, name):
    assert "neither gcc nor clang" in jit_toolchain.lacking_for_triton()
    node(name)
    assert jit_toolchain.lacking_for_triton() is None


def test_cc_goes_before_them(node, monkeypatch):
    node("gcc")
    monkeypatch.setenv("CC", "nvc")
    assert "CC is nvc, which is not a program here" in jit_toolchain.lacking_for_triton()
    monkeypatch.setenv("CC", os.fspath(node("nvc")))
    assert jit_toolchain.lacking_for_triton() is None


def test_a_compiler_without_the_header_of_python(node, tmp_path):
    node("gcc")
    (tmp_path / "include/Python.h").unlink()
    assert jit_toolchain.lacking_for_triton().endswith("include/Python.h")


def test_a_launch_that_cannot_be_compiled_is_skipped_and_another_error_stays(node, monkeypatch):
    fused = pytest.importorskip("gpufeed.augment.fused")

    class Launches:
        def __getitem__(self, grid):
            def launch(*arguments, **constants):
                raise RuntimeError("Failed to find C compiler.")

            return launch

    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that no GPU is asked for
    monkeypatch.setattr(fused, "augment_tiles", Launches())
    augment = fused.FusedAugment(MEAN, STD, 0, {})
    batch = torch.zeros((2, 8, 8, 3), dtype=torch.uint8), torch.arange(2), 0
    with pytest.raises(Skip, match="compiled by Triton on its node, which has no C compiler"):
        augment(*batch)
    node("gcc")
    with pytest.raises(RuntimeError, match="Failed to find C compiler"):
        augment(*batch)
