"""The two recipes of the container are one: same base, steps and environment. compose.yaml starts it."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from data_fixtures import REPOSITORY
from dockerfile_fixtures import DOCKERFILE as PATH
from dockerfile_fixtures import base_image, named, values

DOCKERFILE = PATH.read_text()
DEFINITION = (REPOSITORY / "containers/gpufeed.def").read_text()
INSTALL = REPOSITORY / "containers/install.sh"
ENTRYPOINT = REPOSITORY / "containers/entrypoint.sh"
NVCC = REPOSITORY / "containers/nvcc12.sh"
COMPOSE = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
SOURCES_LISTS = [path for path in Path("/etc/apt").rglob("*sources*") if path.is_file()]
STEP = re.compile(r"sh /opt/gpufeed/src/containers/install\.sh (\w+)")
DOCKERS_OWN = {"HOME", "USER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}


def section(name: str) -> list[str]:
    """The lines of a section of the definition file."""
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", DEFINITION, re.MULTILINE | re.DOTALL)
    return [line.strip() for line in found[1].splitlines() if line.strip()]


def definition(**arguments: str) -> str:
    """The definition file with each {{ NAME }} replaced, as by Apptainer: by the argument, or its default."""
    known = dict(line.split("=", 1) for line in section("arguments")) | arguments
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: known[found[1]], DEFINITION)


def started_from(text: str) -> str:
    """The base of a definition file."""
    return re.search(r"^From: (.+)$", text, re.MULTILINE)[1]


def test_all_start_from_one_image_of_one_day():
    base = base_image()
    assert re.fullmatch(r"debian:bookworm-\d{8}-slim", base)
    assert started_from(definition()) == base
    assert COMPOSE["x-gpufeed"]["build"]["args"]["BASE"] == f"${{BASE:-{base}}}"


def test_the_base_can_be_given_by_its_digest():
    digest = f"debian@sha256:{'0' * 64}"
    assert base_image(BASE=digest) == started_from(definition(BASE=digest)) == digest


def test_both_run_the_same_steps_in_the_same_order():
    steps = STEP.findall(DOCKERFILE)
    assert steps == STEP.findall(DEFINITION) == ["system", "python", "extension"]
    assert steps == re.search(r"^([\w |]+)\) \"install_\$1\"", INSTALL.read_text(), re.MULTILINE)[1].split(
        " | "
    )
    others = [run for run in named("RUN") if not STEP.search(run)]
    assert len(others) == 1
    assert others[0].startswith("useradd ")


def test_both_have_the_same_environment_and_default_stack():
    arguments = values(" ".join(named("ARG")), {})
    assert section("arguments") == [f"{name}={arguments[name]}" for name in ("BASE", "CUDA")]
    docker = values(" ".join(named("ENV")), arguments)
    exports = dict(re.findall(r"export (\w+)='?([^'\n]+)", "\n".join(section("environment"))))
    assert {key: docker[key] for key in docker.keys() - DOCKERS_OWN} == exports
    stack = re.search(r"^CUDA \?= (\d+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)[1]
    assert arguments["CUDA"] == stack  # of make setup
    assert COMPOSE["x-gpufeed"]["build"]["args"]["CUDA"] == f"${{CUDA:-{stack}}}"
    assert COMPOSE["x-gpufeed"]["image"] == f"gpufeed:cuda${{CUDA:-{stack}}}"
    assert f"\nCUDA=${{CUDA:-{stack}}}\n" in INSTALL.read_text()


def test_what_both_copy_is_there_and_docker_is_not_kept_from_it():
    docker = {part for copied in named("COPY") for part in copied.split()[:-1]}
    apptainer = {line.split()[0] for line in section("files")}
    assert docker - apptainer == {"containers/entrypoint.sh"}  # Docker's own
    assert apptainer <= docker
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().split() if line[0] == "!"}
    assert {re.sub(r"/\w+\.sh$", "/*.sh", path) for path in docker} == allowed
    assert all((REPOSITORY / path).exists() for path in docker)


def test_the_extension_is_built_for_named_architectures_and_found_by_that_name():
    from gpufeed.native.build import READY
    from gpufeed.native.toolkit import WANTED

    listed = values(" ".join(named("ARG")), {})["TORCH_CUDA_ARCH_LIST"].split(";")
    built = {tuple(map(int, part.removesuffix("+PTX").split("."))) for part in listed}
    assert built == set(WANTED) - {(7, 0)}  # CUDA 13 has none for it
    assert f"{READY}=/opt/gpufeed/extension" in DOCKERFILE
    assert '"$PREFIX/extension"' in INSTALL.read_text()


def test_nobody_is_root():
    assert named("USER") == ["1000"]  # by number, which needs no passwd
    assert COMPOSE["x-gpufeed"]["user"] == "${GPUFEED_USER:-1000:1000}"
    assert "--uid 1000" in DOCKERFILE


def test_compose_starts_the_demo_with_gpus_and_on_request_without():
    gpu, cpu = COMPOSE["services"]["demo"], COMPOSE["services"]["demo-cpu"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert "profiles" not in gpu
    assert cpu["profiles"] == ["cpu"]
    assert "deploy" not in cpu
    assert '"config/demo.yaml"' in named("CMD")[0]
    for service in (gpu, cpu):
        assert service["build"]["dockerfile"] == "containers/Dockerfile"
        assert f".:{named('WORKDIR')[0]}" in service["volumes"]


def test_containers_and_the_host_mark_gpus_in_one_folder():
    from gpufeed.system.gpu_locks.file_locks import FOLDER, VARIABLE

    base = COMPOSE["x-gpufeed"]
    mounts = dict(volume.split(":", 1) for volume in base["volumes"])
    host, _, name = FOLDER.rpartition("/")
    assert base["environment"][VARIABLE] == f"{mounts[host]}/{name}"


@pytest.mark.parametrize("script", [INSTALL, ENTRYPOINT, NVCC])
def test_the_scripts_are_posix_shell(script):
    shell = shutil.which("dash") or "sh"
    subprocess.run([shell, "-n", script], check=True)


@pytest.mark.parametrize(("argument", "cuda"), [("all", "13"), ("", "13"), ("system", "11")])
def test_a_wrong_step_or_stack_changes_nothing_and_is_told(argument, cuda):
    environment = {"PATH": os.environ["PATH"], "CUDA": cuda}
    command = ["sh", str(INSTALL), *([argument] if argument else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["found", "expected", "what to do"]


def enter(folder, *command: str) -> subprocess.CompletedProcess:
    """Starts a command as the container does, as a user who is nobody where this one is root."""
    as_other = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}
    return subprocess.run(
        ["sh", "-s", "--", *command],
        stdin=ENTRYPOINT.open(),
        cwd=folder,
        capture_output=True,
        text=True,
        **as_other,
    )


@pytest.fixture
def checkout():
    """A folder like a checkout that everybody may write into; pytest's own folders are closed to others."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "results").mkdir()
        (folder / "Snakefile").touch()
        for path in (folder, folder / "results"):
            path.chmod(0o777)
        yield folder


def test_the_container_runs_the_command_in_a_checkout_that_it_may_write_into(checkout):
    done = enter(checkout, "echo", "two words", "three")
    assert (done.returncode, done.stdout) == (0, "two words three\n"), done.stderr


def test_a_checkout_without_results_is_no_error(checkout):
    (checkout / "results").rmdir()
    done = enter(checkout, "echo", "started")
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


@pytest.mark.parametrize(("part", "name"), [(".", "the checkout"), ("results", "results")])
def test_a_checkout_of_another_user_is_told_with_the_remedy(checkout, part, name):
    (checkout / part).chmod(0o555)
    done = enter(checkout, "echo", "started")
    owner = f"{checkout.stat().st_uid}:{checkout.stat().st_gid}"
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"found: {name} of user {owner}, which user " in done.stderr
    if os.geteuid() == 0:  # the container's user is another then; .env may hold BASE and CUDA
        assert f"echo GPUFEED_USER={owner} >> .env, then" in done.stderr
    else:
        assert f"chmod u+w {part}, then" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to other users")
def test_results_of_another_user_in_a_checkout_of_ones_own(checkout):
    os.chown(checkout, 65534, 65534)
    (checkout / "results").chmod(0o755)
    done = enter(checkout, "echo", "started")
    assert done.returncode == 2
    assert "found: results of user 0:0, which user 65534:65534 of the container" in done.stderr
    assert "what to do: sudo chown -R 65534:65534 results, then" in done.stderr
    assert "GPUFEED_USER" not in done.stderr


def test_a_container_without_a_checkout_says_so(checkout):
    (checkout / "Snakefile").unlink()
    assert "no Snakefile" in enter(checkout, "true").stderr


def nvcc_of(tmp_path, programs) -> tuple[int, Path]:
    """Runs nvcc12.sh where apt and dpkg are ours, and the package has these programs; (exit code, folder)."""
    if not re.search(r"https?://\S+/debian/?(\s|$)", "".join(path.read_text() for path in SOURCES_LISTS)):
        pytest.skip("no mirror of Debian in /etc/apt")
    tools, folder = tmp_path / "tools", tmp_path / "a toolkit"
    tools.mkdir()
    own = "$3/usr/lib/nvidia-cuda-toolkit"
    scripts = {
        "apt-get": 'for last; do :; done; [ "$last" = update ] || touch nvidia-cuda-toolkit_12.4.deb',
        "dpkg": f'mkdir -p "{own}/bin/crt" "{own}/libdevice" "$3/usr/bin"\n'
        f'touch "{own}/bin/cicc" "{own}/libdevice/a.bc"\n'
        f'printf "#!/bin/sh\\necho release 12.4\\n" >"{own}/bin/nvcc"; chmod +x "{own}/bin/nvcc"\n'
        + "\n".join(f'touch "$3/usr/bin/{program}"' for program in programs),
    }
    for name, text in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\nset -eu\n{text}\n")
        (tools / name).chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(["sh", NVCC, folder], env={**os.environ, "PATH": path, "TMPDIR": str(tmp_path)})
    assert not list(tmp_path.glob("tmp.*"))
    return done.returncode, folder


def test_an_nvcc_is_put_there_whole_or_not_at_all(tmp_path):
    programs = ["bin2c", "cudafe++", "fatbinary", "nvlink", "ptxas"]
    code, folder = nvcc_of(tmp_path, programs[:-1])
    assert (code != 0, folder.exists()) == (True, False)
    shutil.rmtree(tmp_path / "tools")
    code, folder = nvcc_of(tmp_path, programs)
    assert code == 0
    assert {path.name for path in (folder / "bin").iterdir()} == {*programs, "nvcc", "nvcc.profile", "crt"}
