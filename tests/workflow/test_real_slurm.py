"""Whole runs on a real Slurm: slurmctld, two slurmd and accounting, started and stopped here."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import image_fixtures
import pandas as pd
import psutil
import pytest
import yaml
from config_fixtures import merged
from process_fixtures import wait_until
from slurm_fixtures import ACCOUNT, PARTITION, QOS, answers, cluster, lacking, processes_of, run
from workflow_fixtures import SHORT

from gpufeed.cluster.preflight.sbatch_answers import refusal
from gpufeed.core.record import Record
from gpufeed.system import sigterm_handler
from gpufeed.training.checkpoints import CHECKPOINT, KEY, load
from gpufeed.training.engines.lightning import ASK_EVERY

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "there is all that it takes"),
]
# three cells of the demo with a repeat each, on nodes that tell of GPUs
DEMO = merged("demo.yaml")
DEMO |= {"repeats": 1, "device": "auto", "cores_per_job": 1, "results": "results"}
DEMO["experiments"]["demo"]["blocks"] = {"loaders": {"loader": ["dataloader_sync", "resident", "replay"]}}
FOLDER = "results/records/tiny"
RUNNING = " JobState=RUNNING "
SITE = {
    "slurm-init-seconds-before-status-checks": 1,
    "default-resources": {
        "slurm_account": ACCOUNT,
        "slurm_partition": PARTITION,
        "qos": QOS,
        "sweep_gpu_model": "H200",
        "nodes": 1,
        "runtime": 10,
        "mem_mb": 1000,
    },
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


def test_gpus_of_a_job_are_on_one_node_only_if_it_says_so(slurm):
    options = ["sbatch", "--parsable", "-A", ACCOUNT, "--mem=100", "--output=/dev/null", "--gpus=H200:3"]
    spread = run(*options, "--wrap=true").strip()
    wait_until(lambda: "COMPLETED" in answers("sacct", "-X", "-n", "-j", spread, "-o", "state"), 60)
    assert run("sacct", "-X", "-n", "-P", "-j", spread, "-o", "nnodes").strip() == "2"
    assert (
        "not available"
        in subprocess.run([*options, "--nodes=1", "--wrap=true"], capture_output=True, text=True).stderr
    )


LINE = (
    f"sbatch --parsable --job-name RUN --comment rule_gate -A {ACCOUNT} -p {PARTITION} -t 60 --qos={QOS} "
    "--mem 1000 --nodes=1 --requeue --cpus-per-task=2 --gpus=H200:1"
)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (f"-A {ACCOUNT}", "-A nobody"),
        (f"-A {ACCOUNT}", "-A $SBATCH_ACCOUNT"),
        (f"-p {PARTITION}", "-p ice-tpu"),
        (f"--qos={QOS}", "--qos=embers"),
        ("--gpus=H200:1", "--gpus=A100:1"),
        ("--gpus=H200:1", "--gpus=H200:3"),
        ("--gpus=H200:1", "--gpus=H200:1 -C A100-80GB"),
        ("--nodes=1", "--nodes=3"),
        ("--cpus-per-task=2", "--cpus-per-task=9"),
        ("--mem 1000", "--mem 900000"),
        ("--gpus=H200:1", "--gpus=H200:1 --mem-per-gpu=5"),
        ("--gpus=H200:1", "--gpus=H200:1 --unknown"),
    ],
)
def test_slurm_judges_a_line_before_it_is_submitted(slurm, right, wrong):
    assert refusal(LINE) == ""
    assert refusal(LINE.replace(right, wrong))
    assert not answers("squeue", "-h", "-n", "RUN")


@pytest.mark.parametrize(
    ("right", "wrong"), [("-t 60", "-t 6000"), ("--gpus=H200:1", "--gres=gpu:H200:2 --gpus=H200:0")]
)
def test_what_slurm_takes_and_preflight_finds_itself(slurm, right, wrong):
    """More than MaxTime of the partition, where EnforcePartLimits is not set; GPUs asked for twice."""
    assert refusal(LINE.replace(right, wrong)) == ""


def text_of(log: Path) -> str:
    """Nothing while there is none: a job that starts again has its log taken away first."""
    try:
        return log.read_text()
    except FileNotFoundError:
        return ""


@pytest.mark.timeout(1200)
def test_the_demo_ends_whole_though_jobs_are_requeued_time_out_and_lose_their_node(slurm, workflow):
    flow = workflow(DEMO)
    (flow.folder / "here").mkdir()
    (flow.folder / "here/config.yaml").write_text(yaml.safe_dump(SITE))
    command = [sys.executable, "-m", "snakemake", "--configfile", "test.yaml"]
    command += ["--profile", "slurm", "--profile", "here"]
    with (flow.folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command, cwd=flow.folder, stdout=output, stderr=output, start_new_session=True
        )
    said = (flow.folder / "output.txt").read_text
    logs = flow.folder / "results/logs/measure_cell/demo"

    most = []  # GPUs of the jobs that ran at once, at the fullest moment

    def measured(loader: str) -> str:
        """The running job that measures a loader, once the measurement itself has begun; "" before."""
        assert process.poll() is None, said()[-6000:]
        running = [
            job for job in answers("scontrol", "-o", "-d", "show", "job").splitlines() if RUNNING in job
        ]
        gpus = [
            gpu for job in running for gpu in re.findall(r" Nodes=(\S+) .*?GRES=gpu:H200:1\(IDX:(\d+)\)", job)
        ]
        assert len(gpus) == len(set(gpus)), gpus
        most[:] = max(most, gpus, key=len)
        if not any(logs.glob(f"synthetic-{loader}-*/0.log")):
            return ""
        ours = (re.match(rf"JobId=(\d+) .*rule_measure_cell_.*-{loader}-", job) for job in running)
        return next((match[1] for match in ours if match), "")

    done = {}  # what was done -> to which job

    def hang() -> bool:
        """Stops the ceiling, which waits for no gate, and gives it a minute more."""
        if job := measured("replay"):
            for stopped in processes_of(job):
                stopped.send_signal(signal.SIGSTOP)
            run("scontrol", "update", f"jobid={job}", "timelimit=1")
            done["hung"] = job
        return "hung" in done

    def requeue_and_hold() -> bool:
        """Requeues the first of the two others, and stops the processes of the second where they are."""
        for loader in ("resident", "dataloader_sync"):
            job = measured(loader)
            if not job or job in done.values():
                continue
            if "requeued" not in done:
                run("scontrol", "requeue", job)
                done["requeued"] = job
            else:
                for stopped in processes_of(job):
                    stopped.send_signal(signal.SIGSTOP)
                done["lost"] = job
        return len(done) == 3

    try:
        wait_until(hang, 240)
        wait_until(requeue_and_hold, 240)
        # both may be on one node, which must not be lost before the first has met its time limit
        wait_until(lambda: states(done["hung"]) == ["TIMEOUT"], 240)
        node = node_of(done["lost"])
        slurm.kill_node(node)
        slurm.start_node(node)
        process.wait(600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    assert process.returncode == 0, said()[-6000:]
    assert len(most) >= 2, "jobs with a GPU ran one by one"
    assert states(done["hung"]) == ["TIMEOUT"]
    assert "REQUEUED" in states(done["requeued"])  # it may have been on the node that was lost before
    assert states(done["lost"])[0] == "NODE_FAIL"
    assert {states(done[what])[-1] for what in ("requeued", "lost")} == {"COMPLETED"}
    records = flow.files("results/records/**/*.json")
    assert set(records) == flow.planned_records()
    assert {json.loads(record)["status"] for record in records.values()} == {"done"}
    assert (flow.folder / "results/report.html").stat().st_size > 10_000


@pytest.mark.timeout(900)
def test_a_repeat_goes_on_that_slurm_asks_to_end_some_time_before_its_time_limit(slurm, prepared):
    """By the slurm_extra of docs/slurm.md, with one or two minutes left of the ten of its profile."""
    blocks = {"one": {"loader": "resident", "epochs": 9000}}  # of six steps
    tiny = {**SHORT["experiments"]["tiny"], "blocks": blocks, "resume": True}
    flow = prepared({**SHORT, "cores_per_job": 1, "experiments": {"tiny": tiny}})
    (path,) = flow.planned_records()
    kept = flow.folder / path.replace("records", "checkpoints").removesuffix(".json") / CHECKPOINT
    log = flow.folder / path.replace("records", "logs/measure_cell").replace(".json", ".log")
    (flow.folder / "here").mkdir()
    warned = {"set-resources": {"measure_cell": {"slurm_extra": "'--signal=TERM@110'"}}}
    (flow.folder / "here/config.yaml").write_text(yaml.safe_dump(SITE | warned))
    command = [sys.executable, "-m", "snakemake", "--configfile", "test.yaml", "--retries", "0"]
    command += ["--profile", "slurm", "--profile", "here", path]
    with (flow.folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command, cwd=flow.folder, stdout=output, stderr=output, start_new_session=True
        )
    said = (flow.folder / "output.txt").read_text

    def trains() -> bool:
        assert process.poll() is None, said()[-6000:]
        return kept.exists()

    try:
        wait_until(trains, 240)
        job, taken = run("squeue", "-h", "-o", "%A %M").split()
        run("scontrol", "update", f"jobid={job}", f"timelimit={int(taken.split(':')[0]) + 2}")
        wait_until(lambda: states(job)[0] == "REQUEUED", 150)  # and not TIMEOUT
        # two minutes in all would have Slurm ask again seconds after the start, before anything can listen
        run("scontrol", "update", f"jobid={job}", "timelimit=10")
        step = load(kept)[KEY]["step"]
        goes_on = f"resuming after step {step}, "
        wait_until(lambda: goes_on in text_of(log), 240)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        run("scancel", "-u", "root")
        wait_until(lambda: not answers("squeue", "-h"), 60)
    assert 0 < step < 54000


@pytest.mark.timeout(900)
def test_two_nodes_train_as_one_process_with_twice_the_batch(slurm, prepared):
    same = {"loader": "resident", "trainer": "lightning", "precision": "fp32", "epochs": 2}
    same |= {"overrides": [["model.batch_norm=false"]]}  # whose statistics are of a rank's own batch
    blocks = {"two": {**same, "nodes": 2, "batch_size": 4}, "one": {**same, "batch_size": 8}}
    tiny = {**SHORT["experiments"]["tiny"], "blocks": blocks}
    config = {**SHORT, "device": "auto", "cores_per_job": 1, "telemetry": True}
    flow = prepared({**config, "experiments": {"tiny": tiny}})
    (flow.folder / "here").mkdir()
    (flow.folder / "here/config.yaml").write_text(yaml.safe_dump(SITE))
    profiles = ["--profile", "slurm", "--profile", "here", "--retries", "0"]
    command = [sys.executable, "-m", "snakemake", "--configfile", "test.yaml", *profiles]
    done = subprocess.run(
        [*command, *flow.planned_records()], cwd=flow.folder, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    records = map(Record.read, flow.folder.glob(f"{FOLDER}/*/0.json"))
    found = {record.cell["nodes"]: record for record in records}
    assert {record.status for record in found.values()} == {"done"}, [r.sentence for r in found.values()]
    ranks = found[2].resolved["ranks"]
    assert {rank["node"] for rank in ranks} == {"gpu1", "gpu2"}
    assert found[2].telemetry["images"] == found[1].telemetry["images"]
    losses = {
        nodes: pd.read_parquet(flow.folder / f"{FOLDER}/{record.cell_id}/0.steps.parquet")["loss"].tolist()
        for nodes, record in found.items()
    }
    assert losses[2] == pytest.approx(losses[1], rel=1e-5)
    assert not list((flow.folder / "results/scratch").iterdir())


@pytest.mark.timeout(600)
def test_a_rank_that_dies_ends_both_nodes(slurm, tmp_path):
    killed = on_both_nodes(tmp_path / "killed.txt", f'd.spread_failing("{tmp_path}")')
    wait_until(lambda: states(killed) == ["FAILED"], 120)
    said = (tmp_path / "killed.txt").read_text()
    assert "rank 1 of the training ended with SIGKILL" in said, said


@pytest.mark.timeout(600)
def test_a_training_on_two_nodes_whose_step_is_asked_to_end_keeps_its_state(slurm, tmp_path):
    """As some time before a preemption or a time limit. Asked through its script: test_nodes.py."""
    image_fixtures.write_cache(image_fixtures.write_dataset(tmp_path / "tiny"))
    folder = tmp_path / "tiny"
    job = on_both_nodes(tmp_path / "said.txt", f'd.spread_training("{folder}", 1, 2, waits_after=2)')
    told = [folder / f"pid-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(path.exists() and path.read_text() for path in told), 120)
    run("scancel", "--signal=TERM", job)  # the step, and not the script
    wait_until(lambda: states(job) == ["FAILED"], 120)
    said = (tmp_path / "said.txt").read_text()
    status = run("sacct", "-X", "-n", "-P", "-j", job, "-o", "exitcode").strip()
    assert status == f"{sigterm_handler.STATUS - 128}:0", said  # as sacct shows a status above 128
    assert load(folder / "kept" / CHECKPOINT)[KEY]["step"] == 2 * ASK_EVERY
    assert not any(psutil.pid_exists(int(path.read_text())) for path in told)
    assert not list((folder / "scratch").iterdir())


def on_both_nodes(out: Path, code: str) -> str:
    """The number of a job on both nodes that runs the code, and says what it says in `out`."""
    options = ["-A", ACCOUNT, "--mem=1000", "--nodes=2", "--ntasks=2", f"--output={out}"]
    path = os.pathsep.join(filter(None, sys.path))
    wrap = f"PYTHONPATH={path} exec {sys.executable} -c 'import ddp_fixtures as d; {code}'"
    return run("sbatch", "--parsable", *options, "--no-requeue", f"--wrap={wrap}").strip()


def node_of(job: str) -> str:
    return run("squeue", "-h", "-j", job, "-o", "%N", check=False).strip()


def states(job: str) -> list[str]:
    """How each start of one of Slurm's jobs ended."""
    return run("sacct", "-X", "-n", "-P", "-D", "-j", job, "-o", "state").split()
