"""What Slurm says of the lines: `sbatch --test-only` judges each, and submits nothing.

It answers for account, quality of service, partition, GPUs, constraint, nodes, cores, memory and time.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator

from gpufeed.cluster.preflight.asked_plan import Plan
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.site import Site

SECONDS = 60  # of a busy controller, for one line
UNLIKE = re.compile(r" --(output|comment) \S+")  # in lines that ask for the same
NO_ANSWER = re.compile(r"contact slurm|configuration source|timed out|[Aa]uthentication|Connection refused")
LATER = re.compile("busy|down, drained|not available now")  # Slurm queues such a job all the same


class Silent(Exception):
    """Slurm does not answer; the message says why."""


def refusal(line: str) -> str:
    """Why Slurm refuses a line, in its own words, "" where it takes it; raises Silent without an answer."""
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
    """Lines that Slurm refuses, and those of the last retry; each request is asked about once."""
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
