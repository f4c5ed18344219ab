"""SIGKILL in mid-download, mid-cell and mid-report, then --unlock and the same command again."""

import hashlib
import http.server
import io
import json
import tarfile
import threading
import time

import psutil
import pytest
from process_fixtures import words
from workflow_fixtures import SHORT, wait_until

from gpufeed.core.record import Record


def finish(flow):
    """What the README says to do after a kill."""
    flow.run("--unlock")
    flow.run()


def valid(flow):
    """All records of the folder, each read and checked, by path."""
    return {path: Record.read(flow.folder / path) for path in flow.files("results/records/**/*.json")}


@pytest.mark.slow
def test_killed_in_mid_cell(prepared):
    flow = prepared(SHORT)
    process = flow.start()
    started = flow.folder / "results/logs/measure_cell"

    def second_cell_runs():
        done, begun = len(flow.files("results/records/**/*.json")), len(list(started.glob("**/*.log")))
        return done >= 1 and begun > done

    flow.kill(process, second_cell_runs)
    before = flow.files("results/records/**/*.json")
    assert 1 <= len(before) < len(flow.planned_records())
    finish(flow)
    after = flow.files("results/records/**/*.json")
    assert before.items() <= after.items()  # byte for byte
    assert set(valid(flow)) == flow.planned_records()
    assert {record.status for record in valid(flow).values()} == {"done"}


@pytest.mark.slow
def test_a_job_that_has_just_begun_ends_with_the_snakemake_that_started_it(prepared):
    """It has not imported yet what it measures with, and would then measure beside the next run."""
    flow = prepared({**SHORT, "least_s": 10})
    process = flow.start()

    def jobs():
        found = psutil.Process(process.pid).children(recursive=True)
        return [job for job in found if any("measure_cell" in part for part in words(job))]

    wait_until(jobs)
    time.sleep(0.5)
    running = jobs()
    process.kill()  # snakemake alone: its jobs are other processes
    process.wait()
    gone, alive = psutil.wait_procs(running, timeout=8)
    assert gone
    assert not alive
    assert not flow.files("results/records/**/*.json")


@pytest.mark.slow
def test_killed_in_mid_report(measured):
    flow = measured(SHORT)
    log = flow.folder / "results/logs/assemble_report/report.log"
    log.unlink()
    (flow.folder / "results/report.html").unlink()
    flow.kill(flow.start(), log.exists)
    before = flow.files("results/records/**/*.json")
    assert set(before) == flow.planned_records()
    finish(flow)
    assert flow.files("results/records/**/*.json") == before
    assert "</html>" in (flow.folder / "results/report.html").read_text()


def cifar_archive() -> bytes:
    """A small archive with the layout of cifar-10-python.tar.gz, of images that do not compress."""
    import pickle

    import numpy as np

    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:

        def put(name, content):
            raw = pickle.dumps(content, protocol=2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))

        for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
            rows = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
            labels = [int(i % 10) for i in range(20)]
            names = [f"{name}_{i}.png".encode() for i in range(20)]
            put(name, {b"batch_label": name.encode(), b"labels": labels, b"data": rows, b"filenames": names})
        classes = [f"class{i}".encode() for i in range(10)]
        put("batches.meta", {b"num_cases_per_batch": 20, b"label_names": classes, b"num_vis": 3072})
    return buffer.getvalue()


ENOUGH = 5 * 16384


class SlowServer(http.server.ThreadingHTTPServer):
    """Serves one archive with ranges; stops after ENOUGH bytes, until `fast` is set."""

    def __init__(self, body: bytes):
        super().__init__(("127.0.0.1", 0), SlowHandler)
        self.body, self.fast, self.starts = body, False, []


class SlowHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body, start = self.server.body, 0
        asked = self.headers.get("Range")
        if asked:
            start = int(asked.removeprefix("bytes=").split("-")[0])
        self.server.starts.append(start)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"one"')
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        for at in range(start, len(body), 16384):
            while at >= start + ENOUGH and not self.server.fast:
                time.sleep(0.05)
            try:
                self.wfile.write(body[at : at + 16384])
                self.wfile.flush()
            except OSError:
                return

    def log_message(self, *args):
        pass


@pytest.mark.slow
def test_killed_in_mid_download(workflow):
    server = SlowServer(cifar_archive())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = json.loads(json.dumps(SHORT))
    config["sources"]["served"] = {
        "layout": "cifar10",
        "files": [
            {
                "name": "cifar-10-python.tar.gz",
                "urls": [f"http://127.0.0.1:{server.server_port}/cifar-10-python.tar.gz"],
                "sha256": hashlib.sha256(server.body).hexdigest(),
                "size": len(server.body),
            }
        ],
    }
    config["experiments"]["tiny"]["common"]["dataset"] = "served"
    config["experiments"]["tiny"]["blocks"]["loaders"]["loader"] = "resident"
    flow = workflow(config)
    folder = flow.folder / "data/served/archives"

    def partly_there():
        return any(path.stat().st_size > 60_000 for path in folder.glob("*.partial"))

    try:
        flow.kill(flow.start(), partly_there)
        assert not (folder / "cifar-10-python.tar.gz").exists()
        server.fast = True
        finish(flow)
    finally:
        server.shutdown()
        server.server_close()
    assert server.starts[0] == 0
    assert server.starts[-1] > 0, "the download started over instead of going on"
    assert (folder / "cifar-10-python.tar.gz").read_bytes() == server.body
    assert {record.status for record in valid(flow).values()} == {"done"}
    assert {record.cell["dataset"] for record in valid(flow).values()} == {"served"}
