"""The command python -m gpufeed.preflight: what a run would request from Slurm, and what is wrong with it."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gpufeed.cluster.preflight import asked, sbatch_answers, software_checks, storage
from gpufeed.cluster.preflight.asked_plan import Plan, plan_of
from gpufeed.cluster.preflight.finding import Finding, joined
from gpufeed.cluster.preflight.login_node import Node, look
from gpufeed.cluster.preflight.site import Site, read_site, sites
from gpufeed.core.errors import GpufeedError
from gpufeed.core.quantities import plural

FINE, FOUND, NO_PLAN = 0, 1, 2
DRY_RUN = ("-n", "--dry-run", "--dryrun")  # redundant: preflight starts nothing


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="gpufeed preflight",
        description="Prints the sbatch line of every rule, as the executor would make it, and what is wrong "
        "with the lines, the software, scratch and data. It submits nothing.",
        epilog="All other arguments go to Snakemake: targets, --configfile, --config, profiles. Exit code: 0 "
        "if nothing was found (notes do not count), 1 if something was, 2 if the run cannot be planned.",
        allow_abbrev=False,
    )
    found.add_argument(
        "--site", required=True, help=f"whose profile is added to slurm's: {', '.join(sites())}"
    )
    found.add_argument(
        "--sdm", choices=("none", "conda", "apptainer"), default="none", help="what the jobs will run in"
    )
    return found


def findings(plan: Plan, site: Site, node: Node, deployment: str = "none") -> list[Finding]:
    """Run all checks, and return what they found."""
    checks = (
        software_checks.default_profile,
        software_checks.login_node,
        software_checks.keys_twice,
        sbatch_answers.refused,
        *asked.CHECKS,
        partial(software_checks.environment, deployment=deployment),
        partial(software_checks.stack, deployment=deployment),
        storage.folders,
        storage.space,
        storage.file_count,
        storage.data,
    )
    return joined((finding for check in checks for finding in check(plan, site, node)), plan.given)


def show(plan: Plan) -> None:
    """Print every line with its rule and number of jobs, and the profiles that it comes from."""
    for ask in plan.jobs:
        print(f"{ask.rule} ({plural(ask.count, 'job')})")
        print(f"  {ask.line or 'no line: ' + ask.error}")
    print(f"\nprofiles: {', '.join(plan.profiles)}")


def snakemake_arguments(site: str, rest: Sequence[str]) -> list[str]:
    """Return Snakemake's arguments: the profiles, and the rest without --dry-run."""
    words = [word for word in rest if word not in DRY_RUN]
    return ["--profile", "slurm", "--profile", f"slurm/{site}", *words]


def in_checkout(folder: Path, rest: Sequence[str]) -> None:
    """Raise GpufeedError if there is no Snakefile and none was given."""
    given = any(word.partition("=")[0] in ("-s", "--snakefile") for word in rest)
    if not given and not any((folder / name).exists() for name in ("Snakefile", "workflow/Snakefile")):
        raise GpufeedError(f"no Snakefile in {folder}", "the checkout of gpufeed", "run it in the checkout")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options, rest = parser().parse_known_args(arguments)
    try:
        site = read_site(options.site)
        in_checkout(Path.cwd(), rest)
        plan = plan_of(snakemake_arguments(options.site, rest), Path.cwd())
    except GpufeedError as error:
        print(error, file=sys.stderr)
        return NO_PLAN
    show(plan)
    wrong = findings(plan, site, look(), options.sdm)
    for finding in wrong:
        print(f"\n{finding}")
    count = sum(not finding.note for finding in wrong)
    print(f"\n{site.name}: {'nothing to change' if not count else f'{count} to change before the run'}")
    return FOUND if count else FINE
