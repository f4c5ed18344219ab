"""What an edit of the project's own code runs again."""

import copy

import pytest
from workflow_fixtures import SHORT

pytestmark = pytest.mark.slow

LOADERS = ("dataloader_workers", "dali_cpu", "resident_jpeg")
CONFIG = copy.deepcopy(SHORT)
CONFIG["experiments"]["tiny"]["blocks"] = {
    "forked": {"loader": ["dataloader_workers"], "workers": 2, "augment": "torch"},
    "others": {"loader": ["dali_cpu", "resident_jpeg"], "augment": "torch"},
}
COMMENT = "\n# edited\n"
CODE = "\nEDITED = 1\n"


def test_an_edit_runs_again_what_it_could_change_and_no_more(prepared, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")  # a library that cannot be built is soon written down
    flow = prepared(CONFIG)
    records = flow.planned_records()
    assert len(records) == len(LOADERS)
    flow.run(*records)

    def again(edits: dict[str, str]) -> set[str]:
        """The loaders whose cells are measured again once these files have more in them."""
        before = {flow.folder / "gpufeed" / name: more for name, more in edits.items()}
        texts = {path: path.read_text() for path in before}
        for path, more in before.items():
            path.write_text(texts[path] + more)
        said = flow.run("-n", *records)
        for path, text in texts.items():
            path.write_text(text)
        return {name for path in records if f"output: {path}" in said for name in LOADERS if name in path}

    edited = ("loaders/samples.py", "system/timing.py", "training/step.py", "datasets/manifest.py")
    assert again(dict.fromkeys(edited, COMMENT)) == set()
    assert again({"loaders/samples.py": CODE}) == {"dataloader_workers"}  # forks the workers
    assert again({"system/timing.py": CODE}) == set(LOADERS)  # times a step
    (kernel, *_) = sorted((flow.folder / "gpufeed/native/csrc/cuda").glob("*.cu"))
    assert again({str(kernel.relative_to(flow.folder / "gpufeed")): "\n// edited\n"}) == {"resident_jpeg"}
