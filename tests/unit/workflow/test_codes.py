"""What an edit of the project's own code measures again: digests in a copy of it, each edit taken back."""

import shutil
from types import SimpleNamespace

import pytest
from data_fixtures import REPOSITORY

from gpufeed.core.source_digest import SourceDigests, digest
from gpufeed.workflow.codes import Codes

CELLS = {
    "workers": {"loader": ["dataloader_workers"], "workers": 2, "augment": "cpu"},
    "dali": {"loader": ["dali_gpu"], "augment": "torch"},
    "resident": {"loader": ["resident"], "augment": "fused"},
    "jpeg": {"loader": ["resident_jpeg"]},
    "lightning": {"loader": ["overlap"], "trainer": "lightning"},
}
PLAIN = {"dataloader_workers", "dali_gpu", "resident", "resident_jpeg"}
ALL = {*PLAIN, "overlap"}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and the scripts, and what was parsed of it."""
    folder = tmp_path_factory.mktemp("copy")
    for part in ("gpufeed", "workflow/scripts"):
        shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def digests(copy, run):
    """Makes rule or loader -> the digest of its code: of cells of several loaders, and of other rules."""
    planned = run({"blocks": CELLS}, device="auto")

    def digests():
        digest.cache_clear()
        codes = Codes(planned)
        codes.sources = SourceDigests(copy / "gpufeed", copy / "known.json")
        code = codes.of_training("measure_cell")
        cells = planned.plan.cells["tiny"].items()
        found = {cell.loader: code(SimpleNamespace(experiment="tiny", cell=name)) for name, cell in cells}
        return found | {
            "extension": codes.of("build_extension", files=("native/csrc/**/*.*",)),
            "strips": codes.of("build_strips"),
            "page": codes.of_report("assemble_report"),
        }

    return digests


@pytest.fixture(scope="module")
def edited(copy, digests):
    """Makes the rules and loaders whose code is another once a file is edited; takes the edit back."""
    before = digests()

    def edited(file, more):
        path = copy / "gpufeed" / file
        text = path.read_text()
        path.write_text(text + more)
        try:
            after = digests()
        finally:
            path.write_text(text)
        return {name for name in before if before[name] != after[name]}

    return edited


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("system/processes.py", {"dataloader_workers", "overlap", "strips"}),
        ("loaders/samples.py", {"dataloader_workers", "overlap"}),
        ("loaders/dali.py", {"dali_gpu"}),
        ("decoders/dali_gpu.py", {"dali_gpu"}),
        ("system/timing.py", ALL),
        ("training/step.py", ALL),
        ("training/engines/plain.py", PLAIN),
        ("training/engines/lightning.py", {"overlap"}),
        ("training/engines/fastai.py", set()),
        ("augment/cpu.py", {"dataloader_workers"}),
        ("augment/base.py", ALL),
        ("augment/fused.py", {"resident"}),
        ("augment/chain.py", set()),
        ("loaders/coded_store.py", {"resident_jpeg"}),
        ("loaders/streaming.py", {"dali_gpu", "resident_jpeg"}),
        ("loaders/resident.py", {"resident", "resident_jpeg"}),
        ("datasets/download.py", set()),
        ("loaders/resident_jpeg.py", {"resident_jpeg"}),
        ("native/jpeg_op.py", {"resident_jpeg"}),
        ("stores/strips_build.py", {"strips"}),
        ("report/page.py", {"page"}),
        ("core/record.py", {"page"}),
        ("core/registry.py", {"page"}),
        ("tracking/wandb_run.py", set()),
        ("job.py", set()),
    ],
)
def test_an_edit_changes_what_it_could_change(edited, file, changed):
    found = edited(file, "\nEDITED = 1\n")
    assert (found if "page" in changed else found - {"page"}) == changed


@pytest.mark.parametrize(
    "file", ["system/timing.py", "loaders/dali.py", "training/step.py", "report/page.py"]
)
def test_a_comment_changes_nothing(edited, file):
    assert edited(file, "\n# edited\n") == set()


def test_a_kernel_changes_the_library_that_jobs_wait_for(edited, copy):
    kernel = next((copy / "gpufeed/native/csrc/cuda").glob("*.cu"))
    assert edited(kernel.relative_to(copy / "gpufeed"), "\n// edited\n") == {"extension"}


def test_how_kernels_are_compiled_changes_the_library(edited):
    assert "extension" in edited("native/compile_job.py", "\nEDITED = 1\n")


def test_a_template_changes_the_page(edited):
    assert edited("report/templates/report.css", "\n") == {"page"}
