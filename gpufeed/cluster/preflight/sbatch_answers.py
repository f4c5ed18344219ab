"""Slurm's own judgement of the lines: `sbatch --test-only` checks each, and submits nothing.

It covers account, quality of service, partition, GPUs, constraint, nodes, cores, memory and time.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator

from gpufeed.cluster.preflight.asked_plan import Plan
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.site import Site

SECONDS = 60  # limit for one line, in case the controller is busy
UNLIKE = re.compile(r" --(output|comment) \S+")  # the only difference between equal requests
NO_ANSWER = re.compile(r"contact slurm|configuration source|timed out|[Aa]uthentication|Connection refused")
LATER = re.compile("busy|down, drained|not available now")  # Slurm would still queue such a job


class Silent(Exception):
    """Slurm does not answer; the message says why."""


def refusal(line: str) -> str:
    """Return Slurm's reason for refusing a line, "" if it accepts it; raise Silent without an answer."""
    command = [*shlex.split(line), "--test-only", "--wrap=true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except OSError as error:
        raise Silent(f"no sbatch here, {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Silent(f"no answer within {SECONDS} s") from error
    said = [line.removeprefix("sbatch: ").strip() for line in done.stderr.splitlines() if line.strip()]
    if not done.returncode:
        return ""
    if NO_ANSWER.search(done.stderr) or not said:
        raise Silent(said[-1] if said else f"sbatch ended with {done.returncode}")
    return "; ".join(said)


def refused(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Yield the lines that Slurm refuses, last retries included; each request is checked once."""
    rules: dict[str, set[str]] = {}
    for ask in plan.jobs:
        for line in filter(None, (ask.line, ask.last_line)):
            rules.setdefault(UNLIKE.sub("", line), set()).add(ask.rule)
    found: dict[str, set[str]] = {}
    try:
        for line, named in rules.items():
            if reason := refusal(line):
                found.setdefault(reason, set()).update(named)
    except Silent as error:
        yield Finding(
            f"account, qos, partition, GPUs, constraint and time are not checked by Slurm: {error}",
            f"an answer of `sbatch --test-only`, on a login node of {site.name} ({site.login})",
            "run preflight there before the first job",
            note=True,
        )
    for reason, named in found.items():
        yield Finding(
            f"Slurm refuses {', '.join(sorted(named))}: {reason}",
            f"lines that `sbatch --test-only` takes; {site.name} has account {site.account or 'none'}; qos "
            f"{', '.join(site.qos) or 'none'}; GPUs {', '.join(site.gpus) or 'none'}",
            "export SBATCH_ACCOUNT, or correct the profile by `sacctmgr list associations user=$USER "
            'format=account,qos%60` and `sinfo -o "%P %l %G %f"`',
            note=bool(LATER.search(reason)),
        )
