"""What every script of the workflow does around its work."""

import json
import logging
from types import SimpleNamespace

import pytest

from gpufeed.core import retry_policy
from gpufeed.core.errors import GpufeedError
from gpufeed.job import Job, run
from gpufeed.system import cores as system_cores
from gpufeed.system import parent_watchdog
from gpufeed.workflow.terminal import QUIET


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Runs a work as a job whose Snakemake runs; returns its log. watched: what the watch was asked."""
    monkeypatch.setattr(parent_watchdog, "snakemake_runs", lambda: lambda: True)
    monkeypatch.setattr(parent_watchdog, "end_unless", lambda runs: started.watched.append(runs()))
    monkeypatch.setenv("GPUFEED_PLANNED_ON", "login2")

    def started(work, **keywords):
        started.watched = []
        job = SimpleNamespace(
            log=[str(tmp_path / "logs/job.log")],
            input={},
            output=[str(tmp_path / "made.json")],
            params=SimpleNamespace(attempt=3),
            config={"results": "out"},
            threads=2,
        )
        run(job, work, **keywords)
        return (tmp_path / "logs/job.log").read_text()

    return started


def test_a_work_has_what_snakemake_gives_and_what_documents_say(started):
    found = {}
    log = started(
        lambda job: (found.update(job.common_arguments, scratch=str(job.scratch)), job.logger.info("here"))
    )
    assert found == {"planned_on": "login2", "attempt": 3, "threads": 2, "scratch": "out/scratch"}
    assert log.endswith("INFO here\n")
    assert started.watched == [True]
    assert "job.log" not in str(logging.getLogger("gpufeed").handlers)


def test_a_work_that_forks_watches_by_itself(started):
    seen = []

    def work(job):
        seen.append(list(started.watched))
        job.watch()

    started(work, forks=True)
    assert (seen, started.watched) == ([[]], [True])


@pytest.mark.parametrize(
    ("found", "said", "stderr"),
    [
        ({"status": "done", "sentence": None}, None, ""),
        ({"status": "skipped", "sentence": "There is no GPU."}, None, "a work skipped: There is no GPU.\n"),
        ({"status": "done", "sentence": None}, ["onnx failed: why"], "a work: onnx failed: why\n"),
        ({"status": "failed", "sentence": "It broke."}, [], ""),
    ],
)
def test_a_document_is_kept_with_its_attempt_and_what_stopped_it_is_printed(
    started, tmp_path, capsys, found, said, stderr
):
    document = {"attempt": 3, **found}

    def write(data, path):
        # the attempt has been written down by then: a job that is killed here is tried again
        assert retry_policy.counter(path).read_text() == "3\n"
        (tmp_path / "made.json").write_text(json.dumps(data))

    started(lambda job: job.write_document(document, job.output[0], write, "a work", said))
    assert json.loads((tmp_path / "made.json").read_text()) == document
    assert capsys.readouterr().err == stderr


def test_a_sentence_that_the_terminal_of_the_run_prints_is_not_printed_twice(started, capsys, monkeypatch):
    monkeypatch.setenv(QUIET, "1")
    for status, sentence, said, stderr in (
        ("skipped", "There is no GPU.", None, ""),
        ("partly", "One is short.", None, "a work partly: One is short.\n"),
        ("failed", "It broke.", ["onnx failed: why"], "a work: onnx failed: why\n"),
    ):
        document = {"attempt": 1, "status": status, "sentence": sentence}
        given = (lambda data, path: None, "a work", said)
        started(lambda job, found=document, given=given: job.write_document(found, job.output[0], *given))
        assert capsys.readouterr().err == stderr


def test_a_document_of_a_class_writes_itself(started, tmp_path, capsys):
    class Made(SimpleNamespace):
        def write(self, path):
            (tmp_path / "made.json").write_text(self.status)

    made = Made(attempt=3, status="failed", sentence="It broke.")
    started(lambda job: job.write_document(made, job.output[0], what="it"))
    assert (tmp_path / "made.json").read_text() == "failed"
    assert capsys.readouterr().err == "it failed: It broke.\n"


def test_plain_json_is_written_whole(started, tmp_path):
    started(lambda job: job.write_json({"again": ["ä"]}))
    assert json.loads((tmp_path / "made.json").read_text()) == {"again": ["ä"]}
    with pytest.raises(TypeError):
        started(lambda job: job.write_json({"again": {1}}))
    assert {path.name for path in tmp_path.iterdir()} == {"made.json", "logs"}


def test_an_error_of_ours_ends_the_job_with_its_three_lines(started, tmp_path, capsys):
    def work(job):
        raise GpufeedError("a", "b", "c")

    with pytest.raises(SystemExit, match="1"):
        started(work)
    assert capsys.readouterr().err == "found: a\nexpected: b\nwhat to do: c\n"
    assert "stopped: found: a" in (tmp_path / "logs/job.log").read_text()


@pytest.mark.parametrize("share", [True, False])
def test_a_job_takes_gpus_with_its_share_of_the_cores_or_without(started, monkeypatch, share):
    from gpufeed.system import gpu_locks

    asked = []
    monkeypatch.setattr(gpu_locks, "take", lambda *given: asked.append(given[:4]))

    def work(job):
        job.snakemake.resources = {"shares": 4}
        job.take_gpus(2, "cuda", share=share)

    started(work)
    assert asked == [(2, "cuda", 2, 4) if share else (2, "cuda", 0, 1)]


@pytest.mark.parametrize(("cores", "order"), [(2, ["gpus", "cores 2", "work"]), (None, ["work"])])
def test_a_timed_work_is_kept_on_the_cores_of_its_cell_which_are_of_its_share(
    started, monkeypatch, cores, order
):
    found, cell = [], {"cores": cores, "devices": 1, "device": "auto"}
    monkeypatch.setattr(Job, "cell", cell)
    monkeypatch.setattr(Job, "take_gpus", lambda self, count, device: found.append("gpus"))
    monkeypatch.setattr(system_cores, "pin_to", lambda count: found.append(f"cores {count}"))
    started(lambda job: found.append("work"), on_cores=True)
    assert found == order
