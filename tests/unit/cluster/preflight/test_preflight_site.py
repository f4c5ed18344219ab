"""What the site and its Slurm allow: accounts, partitions, quality of service, time; and its files."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_fixtures import NODE, cpu_job, gpu_job

from gpufeed.cluster.preflight import asked, software_checks
from gpufeed.cluster.preflight import login_node as preflight_node
from gpufeed.cluster.preflight.command import main
from gpufeed.cluster.preflight.login_node import COMMANDS, look, qos_by_account
from gpufeed.cluster.preflight.site import PROFILES, make_site, read_site, sites
from gpufeed.core.errors import GpufeedError


@pytest.mark.parametrize("given", ["", "-A '$SBATCH_ACCOUNT'"])
def test_no_account(found, given):
    job = cpu_job()
    said = found(asked.account, replace(job, line=job.line.replace("-A coc", given)))
    assert "found: no account" in said
    assert "your accounts here: coc" in said
    assert "export SBATCH_ACCOUNT=ACCOUNT" in said


def test_an_account_of_somebody_else(found):
    node = replace(NODE, accounts=frozenset({"gts-mine"}))
    assert "account coc, which Slurm does not know for you" in found(asked.account, cpu_job(), node=node)


def a_site_without(tmp_path, before, after):
    """PACE ICE's file, copied and changed."""
    text = (PROFILES / "pace-ice/site.yaml").read_text()
    for old, new in zip(before, after, strict=True):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/site.yaml").write_text(text)
    return read_site("mine", tmp_path)


NO_ACCOUNT = "account: 'the code of your college, such as coc'"


QOS = "qos:\n  coc-ice: {hours: 16, gpu_hours: 16}\n  pace-ice: {hours: 16, gpu_hours: 16}\n"


@pytest.mark.parametrize(("account", "qos"), [("account: ''", "qos: {}\n"), ("account:", "qos:\n")])
def test_a_site_without_accounts_and_qos(found, tmp_path, account, qos):
    site = a_site_without(tmp_path, (NO_ACCOUNT, QOS), (account, qos))
    job = cpu_job()
    bare = replace(job, line=job.line.replace("-A coc", "").replace("--qos=coc-ice", ""))
    for check in asked.CHECKS:
        assert found(check, bare, site=site) == ""
    assert found(asked.account, bare, node=replace(NODE, accounts=frozenset()), site=site) == ""
    said = found(asked.quality_of_service, job, site=site)  # the line copied with the profile
    assert "found: qos coc-ice\n  expected: no qos: PACE ICE has none, by its site.yaml" in said
    assert "take qos out of slurm/pace-ice/config.yaml" in said
    copied = replace(job, line=job.line.replace("-A coc", "-A '$SBATCH_ACCOUNT'"))
    said = found(asked.account, copied, site=site)
    assert "found: account $SBATCH_ACCOUNT, which the shell does not have" in said
    assert "take slurm_account out of slurm/pace-ice/config.yaml" in said


def test_a_scratch_by_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "gp")
    site = a_site_without(tmp_path, ["folder: ~/scratch"], ["folder: '/scratch/$USER/${USER}s'"])
    assert site.scratch.folder == Path("/scratch/gp/gps")


def test_no_partition_takes_the_job(found):
    job = gpu_job(model="A40", gpus=16)
    said = found(asked.partition, replace(job, line=job.line.replace("-p ice-gpu", "")))
    assert "no partition for measure_cell (such as 16 x A40, 1 h)" in said


def test_a_resource_that_follows_from_files_that_are_not_there(found):
    job = replace(gpu_job(), line="", unknown=("mem_mb",))
    said = found(asked.unknown, job, cpu_job())
    assert "no mem_mb, where Snakemake would go by the size of input files: measure_cell\n" in said
    assert "write mem_mb under default-resources of slurm/pace-ice/config.yaml" in said
    for check in asked.CHECKS:
        assert check is asked.unknown or found(check, job) == ""


def test_a_partition_that_the_cluster_lacks(found):
    node = replace(NODE, partitions=frozenset({"cpu", "gpu"}))
    said = found(asked.partition, gpu_job(), node=node)
    assert "partition ice-gpu, which this cluster does not have" in said
    assert "one of: cpu, gpu" in said


def on(partition, job, taking=()):
    """The job on a partition, where the file has ice-cpu and ice-gpu."""
    line = job.line.replace("-p ice-gpu", f"-p {partition}").replace("-p ice-cpu", f"-p {partition}")
    return replace(job, line=line, taking=taking)


ICE = ("ice-cpu", "ice-gpu")


def test_a_partition_that_does_not_take_its_jobs(found):
    jobs = on("ice-cpu", gpu_job(), ("ice-gpu",)), on("ice-cpu", cpu_job(), ICE)
    said = found(asked.partition, *jobs, partitions=ICE)
    assert "partition ice-cpu for measure_cell (such as 1 x H200, 1 h), which it does not take" in said
    assert "this one fits: ice-gpu" in said
    assert said.count("found:") == 1
    assert "take slurm_partition out of slurm/pace-ice/config.yaml" in said
    assert found(asked.partition, on("ice-gpu", gpu_job(), ("ice-gpu",)), partitions=ICE) == ""


def test_a_partition_that_is_not_in_the_file(found):
    said = found(asked.partition, on("icegpu", gpu_job(), ("ice-gpu",)), partitions=ICE)
    assert "found: partition icegpu, not in the file that slurm-partition-config" in said
    assert "nobody asks whether it takes measure_cell\n  expected: one of: ice-cpu, ice-gpu" in said
    node = replace(NODE, partitions=frozenset({"ice-gpu", "grade"}))
    grade = on("ice-gpu,grade", gpu_job(), ("ice-gpu",))
    said = found(asked.partition, grade, partitions=ICE, node=node)
    assert "note: partition grade, not in the file" in said  # Slurm knows it
    assert "found:" not in said
    assert found(asked.partition, grade, node=node) == ""  # without such a file


def test_a_quality_of_service_of_another_site(found):
    said = found(asked.quality_of_service, gpu_job(qos="embers"))
    assert "qos embers" in said
    assert "one of PACE ICE's: coc-ice, pace-ice" in said
    said = found(asked.quality_of_service, gpu_job(qos="pace_ice"))
    assert "write qos: pace-ice into slurm/pace-ice/config.yaml" in said


def test_a_quality_of_service_that_the_account_may_not_use(found):
    may = replace(NODE, qos={"coc": frozenset({"pace-ice", "normal"})})
    said = found(asked.quality_of_service, gpu_job(), node=may)
    assert "qos coc-ice, which account coc may not use" in said
    assert "one of: normal, pace-ice" in said
    assert found(asked.quality_of_service, gpu_job(qos="pace-ice"), node=may) == ""
    assert found(asked.quality_of_service, gpu_job(), node=replace(NODE, qos={"coc": frozenset()})) == ""
    assert "may not use" not in found(asked.quality_of_service, gpu_job(qos="embers"), node=may)


def test_what_slurm_lets_accounts_use():
    lines = frozenset({"CoC|coc-ice,pace-ice", "CoC|grade", "other|", "|normal"})
    assert qos_by_account(lines) == {"CoC": {"coc-ice", "pace-ice", "grade"}, "other": set()}


def test_slurms_commands_are_there_and_nobody_answers(found, tmp_path, monkeypatch):
    for name in COMMANDS:
        (tmp_path / name).write_text("#!/bin/sh\necho no daemon >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(preflight_node, "ask_torch", lambda: ("", (), ""))
    here = look()
    assert here.silent == ("sacctmgr", "sinfo")
    said = found(software_checks.slurm_commands, node=replace(NODE, silent=here.silent))
    assert "note: accounts, qos, partitions are unchecked: no answer of sacctmgr, sinfo" in said
    (tmp_path / "sacctmgr").write_text("#!/bin/sh\necho 'CoC|coc-ice'\n")
    here = look()
    assert (here.silent, here.accounts, here.qos) == (("sinfo",), {"CoC"}, {"coc": {"coc-ice"}})


def test_a_preemptible_job_that_nobody_starts_again(found):
    job = gpu_job(qos="embers")
    phoenix = read_site("pace-phoenix")
    assert found(asked.quality_of_service, job, site=phoenix) == ""
    stays = replace(job, line=job.line.replace("--requeue", ""))
    said = found(asked.quality_of_service, stays, site=phoenix)
    assert "no --requeue under qos embers, which may preempt after 1 h: measure_cell" in said


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (
            gpu_job(gpus=2, minutes=481),
            "2 GPUs for 8.01667 h are 16.0333 GPU-hours, where 16 are allowed, 8 h",
        ),
        (gpu_job(gpus=4, minutes=300), "4 GPUs for 5 h are 20 GPU-hours, where 16 are allowed, 4 h"),
        (cpu_job(minutes=1000), "16.6667 h, where 16 h are allowed"),
    ],
)
def test_too_long_for_the_site(found, job, sentence):
    assert sentence in found(asked.time, job)


def test_only_the_retry_is_too_long(found):
    said = found(asked.time, gpu_job(minutes=600), last=[gpu_job(minutes=1200)])
    assert "measure_cell at the last of 1 retries: 20 h, where 16 h are allowed" in said


def test_embers_ends_after_eight_hours(found):
    said = found(asked.time, gpu_job(minutes=540, qos="embers"), site=read_site("pace-phoenix"))
    assert "9 h, where 8 h are allowed" in said
    assert found(asked.time, gpu_job(minutes=540, qos="inferno"), site=read_site("pace-phoenix")) == ""


def test_no_time_limit(found):
    assert "no time limit: tabulate" in found(asked.time, cpu_job(minutes=0))


def test_a_misspelt_site_is_told_with_the_nearest(capsys):
    assert main(["--site", "pace-icy"]) == 2
    said = capsys.readouterr().err
    assert "found: site 'pace-icy'" in said
    assert "write 'pace-ice' instead" in said


def test_sites_can_be_read_and_wrong_ones_are_refused(tmp_path):
    assert sites() == ["pace-ice", "pace-phoenix"]
    assert {name: set(read_site(name).qos) for name in sites()} == {
        "pace-ice": {"coc-ice", "pace-ice"},
        "pace-phoenix": {"embers", "inferno"},
    }
    with pytest.raises(GpufeedError, match="pace-ice"):
        read_site("pace-icy")
    with pytest.raises(GpufeedError, match="compare the file with that of another site"):
        make_site({"name": "x", "qos": {"a": {"days": 3}}, "scratch": {"folder": "/", "files": 1}}, tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("qos:\n", "qos: [\n", "a file of YAML"),
        ("qos:\n", "qos: {}\nqos:\n", "key 'qos' twice in"),
        ("{hours: 16, gpu_hours: 16}", "{hours: sixteen}", "'sixteen' is no number above 0"),
        ("files: 1000000", "files: many", "'many' is no number above 0"),
        ("H200: '9.0'", "H200: 9", "9 is no compute capability"),
        (
            "python: '3.11'",
            "python: 3.11",
            "modules: python is 3.11, no text: write names and versions in quotes",
        ),
        ("python: '3.11'", "python: null", "modules: python is None, no text"),
        ("modules: {python: '3.11', gcc: '9', cuda: '12'}", "modules: null", "modules is None, no map"),
        ("modules: {python: '3.11', gcc: '9', cuda: '12'}", "modules: [cuda]", "modules is ['cuda'], no map"),
        ("A100-40GB: A100,", "A100-40GB: 100,", "constraints: A100-40GB is 100, no text"),
        ("A100-40GB: A100,", "80: A100,", "constraints: the key 80 is no text"),
    ],
)
def test_a_wrong_value_in_a_sites_file_is_told(tmp_path, before, after, said):
    text = (PROFILES / "pace-ice/site.yaml").read_text()
    assert before in text
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/site.yaml").write_text(text.replace(before, after))
    with pytest.raises(GpufeedError, match=r"compare the file|each key once") as error:
        read_site("mine", tmp_path)
    assert said in str(error.value)
