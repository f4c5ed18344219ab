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


def test_it_prints_what_snakemake_prints_and_returns_its_status(capfd):
    code = "import sys; print('out', flush=True); print('error', file=sys.stderr); sys.exit(3)"
    assert follow([sys.executable, "-c", code]) == 3
    assert capfd.readouterr() == ("out\nerror\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_and_those_that_it_has_started(tmp_path, number, monkeypatch):
    """Each ignores SIGINT, as no Snakemake does: after the patience they are killed."""
    monkeypatch.setattr(run_process, "PATIENCE_S", 0.5)
    monkeypatch.setattr(run_process, "HURRY_S", 0.5)
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    code += f"; open({str(tmp_path / 'log')!r}, 'a').write('1'); time.sleep(99)"
    both = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}]); {code}"
    log, started = tmp_path / "log", []
    others = psutil.Process().children(recursive=True)  # of tests before this one
    before = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    inherited = signal.signal(number, before)  # tests that run in the background ignore SIGINT

    def interrupt():
        wait_until(lambda: log.exists() and log.read_text().count("1") == 2)
        started.extend(set(psutil.Process().children(recursive=True)).difference(others))
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    assert follow([sys.executable, "-c", both]) == INTERRUPTED
    thread.join()
    assert len(started) == 2
    assert not left_after(10, started)
    assert time.monotonic() - began < 60
    assert signal.getsignal(number) == before
    signal.signal(number, inherited)
