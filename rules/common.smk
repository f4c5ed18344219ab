# The plan, the objects whose methods the rules use, and the constraints on wildcards.

from pathlib import Path
from threading import Thread

from snakemake.exceptions import WorkflowError

ROOT = Path(str(workflow.current_basedir)).parent
from gpufeed.cli.run_results import ending
from gpufeed.core.config import planned
from gpufeed.core.config_schema import check_files
from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import check_run_folder, keep_byte_code, settle_folders, unwritable
from gpufeed.core.plan_decoding import STRIP_SETS
from gpufeed.core.registry import DECODERS, takes_gpu
from gpufeed.core.repeats import AGAIN, number_of
from gpufeed.core.rerun_options import options
from gpufeed.core.retry_policy import announce_planning_node
from gpufeed.core.schedule import Schedule
from gpufeed.system import folder_lock
from gpufeed.system.host_memory import free_host_bytes
from gpufeed.system.parent_watchdog import handed_down
from gpufeed.system.telemetry.process_load import used_by_others
from gpufeed.workflow.benchmarks import Benchmarks, Models
from gpufeed.workflow.codes import Codes
from gpufeed.workflow.datasets import Datasets
from gpufeed.workflow.estimate import Estimate
from gpufeed.workflow.gates import Gates
from gpufeed.workflow.repeats import Repeats
from gpufeed.workflow.report import Report
from gpufeed.workflow.resources import JobResources
from gpufeed.workflow.run import Run
from gpufeed.workflow.terminal import OURS, Known

if TERMINAL:
    TERMINAL.handle_signals(kills=False)  # no job runs yet
    Thread(target=TERMINAL.report_long_jobs, daemon=True).start()
if workflow.is_main_process:
    folder_lock.remove_stale()
    used_by_others()  # from here on
try:
    if workflow.is_main_process:
        check_files(workflow.configfiles)  # Snakemake ignores duplicate keys
        check_run_folder(Path.cwd(), ROOT)
    PLAN = planned(config)
    settle_folders(config)
except GpufeedError as error:
    raise WorkflowError(f"nothing can be planned\n{error}")

announce_planning_node(planning=workflow.is_main_process)
keep_byte_code(Path(".snakemake/byte_code"))
# Slurm sends SIGTERM to all processes of a job: the shell must wait for the program, which may save its state
shell.prefix(f"set -euo pipefail; trap : TERM; {handed_down()}; ")

RESULTS = config["results"]
DATA = config["data"]
SCHEDULE = Schedule(PLAN.cells, config["seed"], PLAN.most_repeats)
GIVEN = (workflow.overwrite_configfiles, workflow.config_settings.config, ".", workflow.main_snakefile)
AGAIN_BY = options(*GIVEN)

PLANS = lambda: (workflow.is_main_process, workflow.executor_plugin is not None and not workflow.dryrun)
RUN = Run(config, PLAN, PLANS)
GATES = Gates(RUN)
REPEATS = Repeats(RUN, checkpoints)
BENCHMARKS = Benchmarks(RUN)
MODELS = Models(RUN)
RESOURCES = JobResources(RUN, GATES, workflow)
CODES = Codes(RUN)
REPORT = Report(RUN, GATES, REPEATS, BENCHMARKS, MODELS, AGAIN_BY)
SAY = lambda line: logger.info(line, extra=OURS)
ESTIMATE = Estimate(
    RUN, REPORT, workflow, free_host_bytes, SAY, 3 if TERMINAL else len(PLAN.cells), used_by_others
)
DATASETS = Datasets(RUN, GATES, ESTIMATE.announce_and_check)
ENDING = lambda: ending(
    RESULTS,
    REPORT.records_of(ESTIMATE.experiments),
    RUN.advised,
    [*RESOURCES.options(), *options(*GIVEN, part=True)],
)


wildcard_constraints:
    dataset="|".join(config["sources"]),
    decoder="|".join({**DECODERS, **STRIP_SETS}),
    experiment="|".join(PLAN.cells),
    loader="|".join(GATES.loaders),
    side="[0-9]+",
    variant="[a-z0-9_.-]+",
    cell="[A-Za-z0-9_.-]+",
    repeat=f"[0-9]+({AGAIN})?",
    repeats="[0-9]+",
