"""A pytest plugin (`-p ledger_log`) that writes each test's start and end into a part of the ledger, at once.

A killed run so loses no more than the tests in flight.
"""

import json
import os
from pathlib import Path
from typing import Any

from ledger_part import NO_TEST, Job, write

JOB = "GPUFEED_LEDGER_JOB"  # the environment variable that names the file with the Job
LONGEST = 4000  # characters of a traceback


def pytest_configure(config):
    config.pluginmanager.register(Noting(Job(**json.loads(Path(os.environ[JOB]).read_text()))))


class Noting:
    def __init__(self, job: Job):
        self.job = job
        self.reports: list[Any] = []
        self.limits: dict[str, float] = {}  # seconds of tests with a limit of their own

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            self._end(NO_TEST, report.outcome, 0.0, *told(report))

    def pytest_collection_modifyitems(self, items):
        alone = {item.nodeid for item in items if item.get_closest_marker("alone")}
        self._note("collected", tests=len(items), of_them_alone=len(alone))
        own = {item.nodeid: item.get_closest_marker("timeout") for item in items}
        self.limits = {nodeid: marker.args[0] for nodeid, marker in own.items() if marker}
        ended = set(self.job.ended)
        items[:] = [
            item
            for item in items
            if (item.nodeid in alone) == self.job.alone and name(item.nodeid) not in ended
        ]

    def pytest_runtest_logstart(self, nodeid):
        self.reports = []
        self._note("start", test=name(nodeid), limit=self.limits.get(nodeid))

    def pytest_runtest_logreport(self, report):
        self.reports.append(report)

    def pytest_runtest_logfinish(self, nodeid):
        failed = [report for report in self.reports if report.failed]
        skipped = [report for report in self.reports if report.skipped]
        outcome = "failed" if failed else "skipped" if skipped else "passed"
        message, detail = told((failed or skipped)[0]) if failed or skipped else ("", "")
        self._end(name(nodeid), outcome, sum(report.duration for report in self.reports), message, detail)

    def _note(self, event: str, **what: Any) -> None:
        if os.getppid() != self.job.parent:
            os._exit(1)  # the run was killed: its part is closed, and nobody ends this process in time
        write(self.job.part, event, file=self.job.file, alone=self.job.alone, **what)

    def _end(self, test: str, outcome: str, seconds: float, message: str, detail: str) -> None:
        self._note(
            "end", test=test, outcome=outcome, seconds=round(seconds, 3), message=message, detail=detail
        )


def name(nodeid: str) -> str:
    """A test without its file."""
    return nodeid.partition("::")[2]


def told(report: Any) -> tuple[str, str]:
    """Why a test was skipped or failed, in a line and in full."""
    if report.skipped:
        return getattr(report, "wasxfail", None) or report.longrepr[2].removeprefix("Skipped: "), ""
    text = report.longreprtext
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else text.strip().splitlines()[-1]
    printed = "".join(f"\n--- {title} ---\n{part[-1500:]}" for title, part in report.sections)
    return f"{report.when}: {message[:500]}", text[-LONGEST:] + printed
