"""What every rule asks Slurm for on each site, held against golden files.

The lines are made by Slurm's executor itself. After a wanted change: `GPUFEED_GOLDEN=write pytest` on this
file, and read the difference.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from workflow_fixtures import ROOT, Workflow

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

    def preflight(*arguments: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "gpufeed.preflight", "--configfile", "test.yaml", *arguments],
            cwd=flow.folder,
            env={**os.environ, "PYTHONPATH": str(flow.folder), **environment},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

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
    """Each is one that the executor takes without a word; the lines come from the profile itself."""
    planted = {
        "default-resources": {"gpu": 1, "gpu_model": "H200", "qos": "inferno", "mem_mb": 8000, "runtime": 30},
        "set-resources": {
            "gate": {"gres": "gpu:H200:1"},
            "train_model": {"gpu_model": "A100"},
            "measure_cell": {"runtime": 1000, "nodes": 2},
            "measure_kernel": {"gpu": 4, "cpus_per_task": 2, "mem_mb": 32},
            "tabulate": {"slurm_extra": "'--time=5'"},
            "plot": {"slurm_extra": "'-t5'"},
            "measure_cel": {"mem_mb": 1},
        },
        "set-resource": {"gate": {"runtime": 3}},
    }
    profile = preflight.folder / "planted/config.yaml"
    profile.parent.mkdir()
    profile.write_text(yaml.safe_dump(planted))
    status, said = preflight("--site", "pace-ice", "--profile", "planted")
    assert status == 1
    for sentence in (
        "no account",
        "GPUs asked for twice, by gpu and by gres: gate",
        "Slurm's executor refuses tabulate: ",
        "take --time out of slurm_extra in planted/config.yaml; what you mean by it is runtime in planted/",
        "-t 5 in slurm_extra behind the line's own -t 30: plot",
        "one of PACE ICE's: coc-ice, pace-ice",
        "A100: train_model; H200: build_cache, evaluate_model, gate, ",
        "rules that need no GPU ask for one: assemble_report, ",
        "no partition for measure_cell (such as 4 x H200, 16.6667 h)",
        "several GPUs without --nodes=1: measure_cell",
        "GPUs: the rule wants 1, the line asks for 4: measure_kernel",
        "cores: the rule wants 8, the line asks for 2: measure_kernel",
        "mem_mb of 32: measure_kernel",
        "set-resource in planted/config.yaml, which Snakemake passes over",
        "write set-resources: measure_cell instead",
        "resources in slurm/config.yaml lost by a later set-resources: build_beton, ",
    ):
        assert sentence in said, said


@pytest.mark.slow
def test_mistakes_planted_in_the_gpus_of_a_profile_are_found(preflight):
    """All by lines that the executor makes without a word, but for a gres that it cannot read."""
    planted = {
        "measure_kernel": {"gpu": 0, "gres": "gpu:H200:8", "runtime": 900, "mem_mb": 8000},
        "gate": {"gpu": 0, "gpu_model": "", "gres": "gpu:A100:4", "runtime": 60, "men_mb": 32000},
        "measure_ceilings": {"gpu": 0, "runtime": 60},
        "predict": {"gpu": 0, "gpu_model": "", "gres": "gpu:H200", "runtime": 30},
        "measure_inference": {"gres": "gpu:H200:1"},
        "evaluate_model": {"slurm_extra": "'--gpus-per-node=A40:8'", "runtime": 300},
        "train_model": {"slurm_extra": "'--gres=gpu:1'"},
        "quantise_model": {"slurm_extra": '"--comment-it=\'x"'},
        "tabulate": {"slurm_extra": "'-G 1'"},
    }
    profile = preflight.folder / "gpus/config.yaml"
    profile.parent.mkdir()
    profile.write_text(yaml.safe_dump({"set-resources": planted}))
    status, said = preflight("--site", "pace-ice", "--profile", "gpus", SBATCH_ACCOUNT="coc")
    assert status == 1
    for sentence in (
        "--gres=gpu:H200:8 --gpus=H200:0",
        "GPUs asked for twice, by gpu and by gres: measure_inference, measure_kernel",
        "measure_kernel: 8 GPUs for 15 h are 120 GPU-hours",
        "several models of GPU in one sweep: A100: gate; A40: evaluate_model; H200: ",
        "rules that need a GPU ask for none: measure_ceilings",
        "GPUs asked for twice, by gpu and by --gpus-per-node in slurm_extra: evaluate_model",
        "GPUs asked for twice, by gpu and by --gres in slurm_extra: train_model",
        "evaluate_model: 8 GPUs for 5 h are 40 GPU-hours",
        "Slurm's executor refuses quantise_model: No closing quotation in slurm_extra: --comment-it='x",
        "rules that need no GPU ask for one: tabulate",
        "take -G out of slurm_extra in gpus/config.yaml",
        "Slurm's executor refuses predict: a number is missing in gres gpu:H200",
        "set-resources: gate: men_mb in gpus/config.yaml, which Snakemake passes over",
        "write set-resources: gate: mem_mb instead",
    ):
        assert sentence in said, said


@pytest.mark.slow
def test_set_resources_on_the_command_line_erase_those_of_the_profile(preflight):
    given = ("gate:runtime=600", "gate:mem_mb=64000", "measure_cell:mem_mb=64000")
    _, said = preflight("--site", "pace-ice", "--set-resources", *given)
    lost = re.search(r"^found: resources in (\S+) lost by a later set-resources: (.*)$", said, re.MULTILINE)
    assert lost, said
    assert lost[1].endswith("slurm/config.yaml")
    assert {"measure_cell", "train_model", "build_cache"} <= set(
        lost[2].split(", ")
    )  # measure_cell's runtime
    assert "gate" not in lost[2].split(", ")  # repeated as a whole


@pytest.mark.slow
def test_the_constraint_of_a_sweep_reaches_jobs_with_a_gpu_alone(preflight):
    profile = yaml.safe_load((preflight.folder / "slurm/pace-ice/config.yaml").read_text())
    defaults = profile["default-resources"] | {"sweep_gpu_model": "A100", "sweep_constraint": "A100-80GB"}
    (preflight.folder / "constrained").mkdir()
    (preflight.folder / "constrained/config.yaml").write_text(yaml.safe_dump({"default-resources": defaults}))
    _, said = preflight("--site", "pace-ice", "--profile", "constrained", SBATCH_ACCOUNT="coc")
    lines = re.findall(r"^  (sbatch .*)$", said, re.MULTILINE)
    with_gpu = [line for line in lines if "--gpus=A100:" in line or "--gres=gpu:A100:" in line]
    assert any("--gres=" in line for line in with_gpu)  # on several nodes, too
    assert 0 < len(with_gpu) < len(lines)
    for line in lines:
        assert line.count(" -C A100-80GB") == (line in with_gpu), line
    assert "constraint" not in said.partition("\n\n")[2]


@pytest.mark.slow
def test_keys_of_a_sweep_that_are_left_empty_are_none(preflight):
    profile = yaml.safe_load((preflight.folder / "slurm/pace-ice/config.yaml").read_text())
    empty = {"sweep_gpu_model": None, "sweep_constraint": None, "constraint": None}
    (preflight.folder / "empty").mkdir()
    text = yaml.safe_dump({"default-resources": profile["default-resources"] | empty})
    (preflight.folder / "empty/config.yaml").write_text(text)
    status, said = preflight("--site", "pace-ice", "--profile", "empty", SBATCH_ACCOUNT="coc")
    assert status == 1
    assert "None" not in lines_of(said), said
    assert "--gpus=1" in lines_of(said)
    assert "found: no model of GPU: " in said


@pytest.mark.slow
def test_default_resources_without_memory_are_told(preflight):
    """Snakemake's own mem_mb follows from files that are not there yet."""
    status, said = preflight("--site", "pace-ice", "--default-resources", "gpu_model=H100", "runtime=30")
    assert status == 1, said
    found = re.search(r"^found: no mem_mb, where .* input files: (.*)$", said, re.MULTILINE)
    assert {"plot", "tabulate"} <= set(found[1].split(", ")), said
    assert "measure_cell" not in found[1].split(", ")  # set-resources has it
    assert "write mem_mb under default-resources of the command line" in said
    assert "no line: no mem_mb" in said


@pytest.mark.slow
def test_a_container_is_held_against_its_arguments(preflight):
    _, said = preflight("--site", "pace-ice", "--sdm", "apptainer")
    assert "found: no --nv for the container" in said
    _, said = preflight("--site", "pace-ice", "--sdm", "apptainer", "--apptainer-args", " --nv")
    assert "no --nv" not in said


@pytest.mark.slow
def test_a_slurm_partition_is_held_against_the_file(preflight):
    profile = yaml.safe_load((preflight.folder / "slurm/pace-ice/config.yaml").read_text())
    defaults = profile["default-resources"] | {"slurm_partition": "ice-cpu"}
    (preflight.folder / "on-cpu").mkdir()
    unread = {"predict": {"gpu": 0, "gpu_model": "", "gres": "gpu:H200"}}  # one GPU, to Slurm alone
    (preflight.folder / "on-cpu/config.yaml").write_text(
        yaml.safe_dump({"default-resources": defaults, "set-resources": unread})
    )
    status, said = preflight("--site", "pace-ice", "--profile", "on-cpu", SBATCH_ACCOUNT="coc")
    assert status == 1
    over = re.search(r"^found: partition ice-cpu for (.*) \(such as .*which it does not take$", said, re.M)
    assert over, said
    assert {"measure_cell", "train_model", "gate"} <= set(over[1].split(", "))
    assert not {"plot", "tabulate"} & set(over[1].split(", "))
    assert "take slurm_partition out of on-cpu/config.yaml" in said
    assert "refuses predict" not in said


@pytest.mark.slow
def test_a_misspelt_key_of_a_partition_is_told_with_its_file(preflight):
    file = preflight.folder / "misspelt.yaml"
    file.write_text("partitions: {ice-cpu: {max_runtim: 960}}\n")
    status, said = preflight("--site", "pace-ice", "--slurm-partition-config", str(file))
    assert status == 2
    assert f"{file}: " in said
    assert "max_runtim" in said


@pytest.mark.slow
def test_a_run_that_cannot_be_planned_is_told_with_snakemakes_words(preflight):
    status, said = preflight("--site", "pace-ice", "--config", "device=tpu")
    assert status == 2
    assert "does not plan" in said
    assert "tpu" in said


@pytest.mark.slow
def test_a_config_file_that_is_no_yaml_is_told_with_its_line(preflight):
    file = preflight.folder / "broken.yaml"
    file.write_text("run: [golden]\ndevice: [cuda\nrepeats: 1\n")
    status, said = preflight("--site", "pace-ice", "--configfile", str(file))
    assert status == 2
    assert f"{file} is no YAML: " in said
    assert f'in "{file}", line 3, column 8' in said


@pytest.mark.slow
def test_a_dry_run_is_no_other_executor_and_a_remedy_repeats_the_config_that_was_given(preflight):
    given = ("-n", "--config", "data=/dev/shm/none", "cores_per_job=4")
    _, said = preflight("--site", "pace-ice", *given, SBATCH_ACCOUNT="coc")
    assert "build_extension (1 job)\n  sbatch " in said
    assert "an executor other than" not in said
    options = set(re.findall(r"--config (.*) \(all in one", said))
    assert len(options) == 1, said
    (option,) = options
    assert "gpufeed/data cores_per_job=4 results=" in option
    assert "/dev/shm" not in option
