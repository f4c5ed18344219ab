"""Every package and version that envs/ names can still be had, together, from the package index."""

import pytest
import yaml
from data_fixtures import REPOSITORY
from uv_fixtures import run_uv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PLAIN = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
EXTRAS = ["--extra", "all"]
LINUX = ["--python-platform", "x86_64-manylinux_2_28"]


def resolved(*options: object, text: str | None = None) -> set[str]:
    """The lines to which uv resolves requirements; nothing is installed, and no earlier answer is kept."""
    return set(run_uv("compile", "--refresh", *PLAIN, *options, text=text).splitlines())


@pytest.mark.parametrize("cuda", ["12", "13"])
def test_the_constraints_are_what_the_project_resolves_to_on_every_platform(cuda):
    path = REPOSITORY / f"envs/constraints-cuda{cuda}.txt"
    extras = [*EXTRAS, "--extra", "dev", "--extra", f"cuda{cuda}"]
    found = resolved(
        "--universal", "--python-version", "3.11", *extras, "--constraint", path, "pyproject.toml"
    )
    assert found == set(path.read_text().splitlines())


def test_the_environment_of_conda_is_whole():
    environment = yaml.safe_load((REPOSITORY / "envs/gpufeed.yaml").read_text())
    (pip,) = (part["pip"] for part in environment["dependencies"] if isinstance(part, dict))
    (python,) = (part for part in environment["dependencies"] if str(part).startswith("python="))
    for_it = ["--python-version", python.removeprefix("python="), *LINUX]
    assert resolved(*for_it, "-", text="\n".join(pip)) == set(pip)


def test_the_containers_compiler_belongs_to_its_torch():
    """install.sh adds nvcc to the CUDA 13 stack: no version of it moves."""
    path = REPOSITORY / "envs/constraints-cuda13.txt"
    extras = [*EXTRAS, "--extra", "cuda13"]
    common = ["--python-version", "3.11", *LINUX, *extras, "--constraint", path, "pyproject.toml"]
    without, with_nvcc = resolved(*common), resolved(*common, "-", text="cuda-toolkit[nvcc,crt,nvvm,cccl]")
    added = {line.split("==")[0] for line in with_nvcc - without}
    assert without <= with_nvcc
    assert added == {"nvidia-cuda-crt", "nvidia-cuda-nvcc"}
