"""What every rule asks Slurm for on each site, held against golden files.

The lines are made by Slurm's executor itself. After a wanted change: `GPUFEED_GOLDEN=write pytest` on this
file, and read the difference.
"""

import io
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml
from workflow_fixtures import ROOT, Workflow

from gpufeed import preflight as program
from gpufeed.cluster.preflight import login_node

GOLDEN = Path(__file__).parent / "golden"
SITES = {"pace-ice": "coc", "pace-phoenix": "gts-example3"}  # with an account
EVERY_RULE = {
    "run": ["golden", "advised"],
    "device": "cuda",
    "repeats": 1,
    "baseline": "elsewhere",
    "cache_decoder": "dali_gpu",
    "cores_per_job": 8,
    "sources": {"synthetic": {"options": {"count": 60, "size": 16, "classes": 3}}},
    "experiments": {
        "golden": {
            "title": "Golden",
            "question": "What does each rule ask for?",
            "common": {"dataset": "synthetic", "model": "simple_cnn", "batch_size": 8, "augment": "torch"},
            "blocks": {
                "kept": {"loader": "resident"},
                "workers": {"loader": "dataloader_workers", "workers": 12},
                "tuned": {"loader": "dataloader_workers", "workers": 2, "settings": "tuned"},
                "first": {"loader": "dataloader_sync", "synchronise": "step"},
                "second": {"loader": "dataloader_workers", "workers": 2, "synchronise": "step"},
                "strips": {"loader": "strips"},
                "shards": {"loader": "webdataset"},
                "beton": {"loader": "ffcv"},
                "crops": {"loader": "host_cache", "augment": "none", "recipe": "random_resized_crop"},
                "ddp": {"loader": "dataloader_workers", "workers": 2, "trainer": "lightning", "devices": 2},
                "nodes": {"loader": "resident", "trainer": "lightning", "devices": 2, "nodes": 2},
                "ops": {
                    "loader": "resident",
                    "model": "vit_lite",
                    "overrides": [["model.activation=bias_gelu"]],
                },
            },
            "side_by_side": ["first", "second"],
            "models": {"blocks": ["kept", "nodes"], "predict": ["photo.jpg"]},
            "inference": {"blocks": ["kept"]},
            "ceilings": {"blocks": ["kept"]},
            "sweep": {"datasets": ["synthetic"], "decoders": ["pillow", "strips"]},
            "builds": {"dataset": "synthetic", "decoders": ["pillow", "dali_gpu"], "counts": [30]},
            "kernels": {},
        },
        "advised": {
            "title": "Advised",
            "question": "What does a probe ask for?",
            "common": {"dataset": "synthetic", "model": "simple_cnn", "batch_size": 8, "augment": "torch"},
            "blocks": {"today": {"loader": "resident"}},
            "advice": {"of": "today"},
        },
    },
}


@pytest.fixture(scope="module")
def preflight(tmp_path_factory):
    """Runs preflight in a copy of the workflow that plans every rule: (status, what it printed)."""
    flow = Workflow(tmp_path_factory.mktemp("lines") / "checkout", EVERY_RULE)
    (flow.folder / "photo.jpg").touch()
    record = flow.folder / "elsewhere/golden/cell/0.json"
    record.parent.mkdir(parents=True)
    record.touch()  # planning asks whether there is one, not what it holds

    torch = login_node.ask_torch()  # which takes seconds, and says the same each time

    def preflight(*arguments: str, **environment: str) -> tuple[int, str]:
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
            patch.chdir(flow.folder)
            patch.setattr(login_node, "ask_torch", lambda: torch)
            for name, value in {"PYTHONPATH": str(flow.folder), **environment}.items():
                patch.setenv(name, value)
            status = program.main(["--configfile", "test.yaml", *arguments])
        return status, said.getvalue()

    preflight.folder = flow.folder
    return preflight


def lines_of(said: str) -> str:
    """The lines alone, by rule; findings depend on the machine."""
    found = re.findall(r"^(\w+) \(\d+ jobs?\)\n  (sbatch .*)$", said, re.MULTILINE)
    return "".join(f"{rule}\n  {line}\n" for rule, line in found)


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_lines_of_every_rule_are_the_golden_ones(preflight, site):
    status, said = preflight("--site", site, SBATCH_ACCOUNT=SITES[site])
    assert status in (0, 1), said
    golden = GOLDEN / f"{site}.txt"
    if os.environ.get("GPUFEED_GOLDEN") == "write":
        golden.write_text(lines_of(said))
    assert lines_of(said) == golden.read_text()


@pytest.mark.parametrize("site", SITES)
def test_golden_files_hold_every_rule_that_is_submitted(site):
    rules = [
        rule
        for path in (ROOT / "rules").glob("*.smk")
        for rule in re.findall(r"^rule (\w+):\n((?:    .*\n|\n)*)", path.read_text(), re.MULTILINE)
    ]
    submitted = {name for name, body in rules if "localrule: True" not in body}
    assert set(re.findall(r"^(\w+)$", (GOLDEN / f"{site}.txt").read_text(), re.MULTILINE)) == submitted


@pytest.mark.slow
def test_mistakes_planted_in_a_profile_are_found(preflight):
    """Each is one that the executor takes without a word, but for what it refuses as slurm_extra or gres."""
    planted = {
        "default-resources": {"gpu": 1, "gpu_model": "H200", "qos": "coc-ice", "mem_mb": 8000, "runtime": 30},
        "set-resources": {
            "gate": {"gres": "gpu:H200:1"},
            "train_model": {"gpu_model": "A100"},
            "measure_cell": {"runtime": 60, "nodes": 2},
            "measure_kernel": {"gpu": 4, "cpus_per_task": 2, "runtime": 900},
            "measure_ceilings": {"gpu": 0},
            "measure_inference": {"gpu": 0, "gres": "gpu:H200:8"},
            "predict": {"gpu": 0, "gpu_model": "", "gres": "gpu:H200"},
            "quantise_model": {"slurm_extra": '"--comment-it=\'x"'},
            "evaluate_model": {"slurm_extra": "'--gpus-per-node=A40:8'"},
            "tabulate": {"slurm_extra": "'--time=5'"},
            "plot": {"slurm_extra": "'-t5'"},
            "measure_cel": {"mem_mb": 1},
            "compare": {"men_mb": 1},
        },
        "set-resource": {"gate": {"runtime": 3}},
    }
    profile = preflight.folder / "planted/config.yaml"
    profile.parent.mkdir()
    profile.write_text(yaml.safe_dump(planted))
    status, said = preflight("--site", "pace-ice", "--profile", "planted")
    assert status == 1
    for sentence in (
        "slurm/pace-ice/config.yaml, planted/config.yaml",
        "--gres=gpu:H200:8 --gpus=H200:0",
        "no sbatch line, The --runtime/time-limit option is not allowed",
        "no sbatch line, No closing quotation; slurm_extra: --comment-it='x: quantise_model",
        "; gres: gpu:H200: predict",
        "GPUs asked for twice, 1 x H200 by gpu and 1 x H200 by gres: gate",
        "GPUs asked for twice, none by gpu and 8 x H200 by gres: measure_inference",
        "GPUs: the rule wants 1 x H200, the job asks for 1 x A100: train_model",
        "GPUs: the rule wants 1 x H200, the job asks for 4 x H200: measure_kernel",
        "GPUs: the rule wants 1 x H200, the job asks for none: measure_ceilings",
        "GPUs: the rule wants none, the job asks for 1 x H200: assemble_report, ",
        "nodes: the rule wants 1, the job asks for 2: measure_cell",
        "cpus_per_task: the rule wants 8, the job asks for 2: measure_kernel",
        "4 GPUs for 15 h are 60 GPU-hours, where 16 are allowed, 4 h: measure_kernel",
        "--gpus-per-node in slurm_extra instead of devices of a block: evaluate_model",
        "--time in slurm_extra instead of runtime: tabulate",
        "-t in slurm_extra instead of runtime: plot",
        "set-resource in planted/config.yaml, which Snakemake silently ignores",
        "write set-resources: measure_cell instead",
        "set-resources: compare: men_mb in planted/config.yaml, which Snakemake silently ignores",
        "write set-resources: compare: mem_mb instead",
        "resources in slurm/config.yaml lost by a later set-resources: build_beton, ",
    ):
        assert sentence in said, f"{sentence}\n{said}"


@pytest.mark.slow
def test_set_resources_on_the_command_line_erase_those_of_the_profile(preflight):
    """And a container is held against its arguments."""
    given = ("gate:runtime=600", "gate:mem_mb=64000", "measure_cell:mem_mb=64000")
    _, said = preflight("--site", "pace-ice", "--sdm", "apptainer", "--set-resources", *given)
    assert "found: no --nv for the container" in said
    lost = re.search(r"^found: resources in (\S+) lost by a later set-resources: (.*)$", said, re.MULTILINE)
    assert lost, said
    assert lost[1].endswith("slurm/config.yaml")
    assert {"measure_cell", "train_model", "build_cache"} <= set(
        lost[2].split(", ")
    )  # measure_cell's runtime
    assert "gate" not in lost[2].split(", ")  # repeated as a whole


@pytest.mark.slow
def test_keys_of_a_sweep_that_are_left_empty_are_none(preflight):
    profile = site_profile(preflight, "empty", sweep_gpu_model=None, sweep_constraint=None, constraint=None)
    status, said = preflight("--site", "pace-ice", "--profile", profile, SBATCH_ACCOUNT="coc")
    assert status == 1
    assert "None" not in lines_of(said), said
    assert "--gpus=1" in lines_of(said)
    assert "found: no model of GPU (sweep_gpu_model): " in said


@pytest.mark.slow
def test_default_resources_without_memory_are_told(preflight):
    """Snakemake's own mem_mb follows from files that are not there yet."""
    status, said = preflight("--site", "pace-ice", "--default-resources", "gpu_model=H100", "runtime=30")
    assert status == 1, said
    found = re.search(r"^found: no sbatch line, no mem_mb: .* not there yet: (.*)$", said, re.MULTILINE)
    assert {"plot", "tabulate"} <= set(found[1].split(", ")), said
    assert "measure_cell" not in found[1].split(", ")  # set-resources has it
    assert "no line: no mem_mb" in said


def site_profile(preflight, name: str, **changes: object) -> str:
    """The name of a profile with the default resources of PACE ICE, but for these."""
    profile = yaml.safe_load((preflight.folder / "slurm/pace-ice/config.yaml").read_text())
    folder = preflight.folder / name
    folder.mkdir()
    text = yaml.safe_dump({"default-resources": profile["default-resources"] | changes})
    (folder / "config.yaml").write_text(text)
    return name


@pytest.mark.slow
def test_a_constraint_reaches_jobs_with_a_gpu_alone_and_a_partition_is_held_against_the_file(preflight):
    changes = {"sweep_gpu_model": "A100", "sweep_constraint": "A100-80GB", "slurm_partition": "ice-cpu"}
    given = ("--profile", site_profile(preflight, "changed", **changes), "--sdm", "apptainer")
    given += ("--apptainer-args", " --nv")
    status, said = preflight("--site", "pace-ice", *given, SBATCH_ACCOUNT="coc")
    assert status == 1
    lines = re.findall(r"^  (sbatch .*)$", said, re.MULTILINE)
    with_gpu = [line for line in lines if "--gpus=A100:" in line or "--gres=gpu:A100:" in line]
    assert any("--gres=" in line for line in with_gpu)  # on several nodes, too
    assert 0 < len(with_gpu) < len(lines)
    for line in lines:
        assert line.count(" -C A100-80GB") == (line in with_gpu), line
    assert "constraint: the rule wants" not in said
    over = re.search(r"^found: partition ice-cpu, whose limits .*: (.*)$", said, re.MULTILINE)
    assert over, said
    assert {"measure_cell", "train_model", "gate"} <= set(over[1].split(", "))
    assert not {"plot", "tabulate"} & set(over[1].split(", "))
    assert "no --nv" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "text", "reasons"),
    [
        ("--slurm-partition-config", "partitions: {ice-cpu: {max_runtim: 960}}\n", ("max_runtim",)),
        ("--configfile", "device: tpu\n", ("does not plan", "tpu")),
        (
            "--configfile",
            "run: [golden]\ndevice: [cuda\nrepeats: 1\n",
            ("{file} is no YAML: ", 'in "{file}", line 3, column 8'),
        ),
    ],
    ids=["key of a partition", "value", "YAML"],
)
def test_a_run_that_cannot_be_planned_is_told_with_the_reason(preflight, option, text, reasons):
    file = preflight.folder / "wrong.yaml"
    file.write_text(text)
    status, said = preflight("--site", "pace-ice", option, str(file))
    assert status == 2
    for reason in reasons:
        assert reason.format(file=file) in said


@pytest.mark.slow
def test_a_dry_run_is_no_other_executor_and_a_remedy_repeats_the_config_that_was_given(preflight):
    given = ("-n", "--config", "data=/dev/shm/none", "cores_per_job=4")
    _, said = preflight("--site", "pace-ice", *given, SBATCH_ACCOUNT="coc")
    assert "build_extension (1 job)\n  sbatch " in said
    assert "an executor other than" not in said
    options = set(re.findall(r"--config (.*) \(in one option", said))
    assert len(options) == 1, said
    (option,) = options
    assert "gpufeed/data cores_per_job=4 results=" in option
    assert "/dev/shm" not in option
