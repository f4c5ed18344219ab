"""The process of gpufeed run: how it ends."""

import os
import signal
import sys
import threading
import time

import psutil
import pytest
from process_fixtures import left_after, wait_until

from gpufeed.cli import run_process
from gpufeed.cli.run_process import INTERRUPTED, follow
from gpufeed.workflow.terminal import TWICE_S


def test_it_prints_what_snakemake_prints_and_returns_its_status(capfd):
    code = "import sys; print('out', flush=True); print('error', file=sys.stderr); sys.exit(3)"
    assert follow([sys.executable, "-c", code]) == 3
    assert capfd.readouterr() == ("out\nerror\n", "")


@pytest.fixture
def signalled():
    """Follows a command, and sends signals to this process once something holds."""

    def signalled(command, holds, *numbers, apart_s=0.0, meanwhile=lambda: None):
        befores = {n: signal.default_int_handler if n == signal.SIGINT else signal.SIG_DFL for n in numbers}
        # tests that run in the background ignore SIGINT
        inherited = {number: signal.signal(number, before) for number, before in befores.items()}

        def interrupt():
            wait_until(holds)
            meanwhile()
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(apart_s)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            return follow(command)
        finally:
            thread.join()
            assert {number: signal.getsignal(number) for number in befores} == befores
            for number, handler in inherited.items():
                signal.signal(number, handler)

    return signalled


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_and_those_that_it_has_started(tmp_path, number, monkeypatch, signalled):
    """Each ignores SIGTERM, as no Snakemake does: after the patience they are killed."""
    monkeypatch.setattr(run_process, "PATIENCE_S", 0.5)
    monkeypatch.setattr(run_process, "HURRY_S", 0.5)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code += f"; open({str(tmp_path / 'log')!r}, 'a').write('1'); time.sleep(99)"
    both = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}]); {code}"
    log, started = tmp_path / "log", []
    others = psutil.Process().children(recursive=True)  # of tests before this one
    began = time.monotonic()
    ended = signalled(
        [sys.executable, "-c", both],
        lambda: log.exists() and log.read_text().count("1") == 2,
        number,
        meanwhile=lambda: started.extend(set(psutil.Process().children(recursive=True)).difference(others)),
    )
    assert ended == INTERRUPTED
    assert len(started) == 2
    assert not left_after(10, started)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("numbers", "apart_s", "heard"),
    [
        ([signal.SIGINT], 0, 1),
        ([signal.SIGTERM, signal.SIGTERM], 0, 1),  # timeout: to the process, and to its group
        ([signal.SIGTERM, signal.SIGTERM], 3 * TWICE_S, 2),
    ],
)
def test_snakemake_hears_each_stop_once_where_it_ignores_ctrl_c(tmp_path, signalled, numbers, apart_s, heard):
    """As what a script starts in the background does. The second stop lets it kill its jobs."""
    log = tmp_path / "log"
    code = f"""
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
log, heard = open({str(log)!r}, "w", buffering=1), []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
print("ready", file=log)
while not heard: time.sleep(0.05)
until = time.monotonic() + 1
while time.monotonic() < until: time.sleep(0.05)
log.write(f"heard {{len(heard)}}")
"""

    def begun():
        return log.exists() and log.read_text() == "ready\n"

    assert signalled([sys.executable, "-c", code], begun, *numbers, apart_s=apart_s) == INTERRUPTED
    assert log.read_text() == f"ready\nheard {heard}"
