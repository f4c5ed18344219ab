"""What to type for a missing package."""

from pathlib import Path

import pytest

from gpufeed.core import errors


@pytest.mark.parametrize("checkout", [True, False])
def test_what_to_install_is_the_same_on_all_machines(tmp_path, monkeypatch, checkout):
    said = set()
    for number in range(2):  # folders of two users, and the folder that one works in
        root = tmp_path / f"user{number}" / "my gpufeed"
        root.mkdir(parents=True)
        if checkout:
            (root / "pyproject.toml").touch()
        monkeypatch.setattr(errors, "__file__", str(root / "gpufeed/core/errors.py"))
        for folder in (root, Path.home()):
            monkeypatch.chdir(folder)
            said.add(errors.install("onnx.helper"))
    assert said == {"pip install '.[all]' in gpufeed's folder" if checkout else "pip install 'gpufeed[all]'"}
    assert errors.install("ffcv") == "pip install ffcv"
    assert errors.install(None) == "install it"
