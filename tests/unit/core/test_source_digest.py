"""Digests over import closures, on a package made up here."""

import pytest

from gpufeed.core.source_digest import COMPUTING, MEASURING, PACKAGE, SourceDigests, digest

ROOMS = ("loaders", "system", "core/sizes")
FILES = {
    "__init__.py": "",
    "core/__init__.py": "",
    "core/registry.py": 'LOADERS = {"one": "made.loaders.one:One", "two": "made.loaders.two:Two"}\n',
    "core/sizes.py": "SIZE = 3\n",
    "loaders/__init__.py": "",
    "loaders/base.py": '"""What both share."""\nfrom made.core import registry, sizes\n\n\n'
    'class Base:\n    """A loader."""\n',
    "loaders/one.py": "from .base import Base\n\n\nclass One(Base):\n    def batch(self):\n"
    "        from ..system import clock\n",
    "loaders/two.py": "from made.loaders import base, one\n",
    "loaders/ranks.py": 'COMMAND = ["-m", "made.loaders.two"]\n',
    "loaders/child.py": 'PROGRAM = Path(__file__).with_name("base.py")\n',
    "system/__init__.py": "",
    "system/clock.py": "from made.system import threads\n",
    "system/threads.py": "from typing import TYPE_CHECKING\n\nfrom made.system import clock\n\n"
    "if TYPE_CHECKING:\n    from made.loaders.two import Two\n",
    "report/page.py": "from made.loaders import one\n",
}


@pytest.fixture
def made(tmp_path):
    """The folder of the package."""
    for name, text in FILES.items():
        file = tmp_path / "made" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "made"


def closure(made, *entries, rooms=ROOMS):
    found = SourceDigests(made).closure(*entries, rooms=rooms)
    return {file.removeprefix("made/") for file in found if not file.endswith("__init__.py")}


ONE = {"loaders/one.py", "loaders/base.py", "core/sizes.py", "system/clock.py", "system/threads.py"}


def test_the_closure_has_lazy_relative_and_circular_imports_but_none_for_types(made):
    assert closure(made, "made.loaders.one") == ONE


def test_the_closure_stays_in_its_rooms_and_does_not_pass_through_the_registry(made):
    assert closure(made, "made.report.page") == {"report/page.py", *ONE}
    assert closure(made, "made.loaders.one", rooms=("loaders",)) == {"loaders/one.py", "loaders/base.py"}
    everything = closure(made, "made.loaders.one", rooms=("loaders", "system", "core"))
    assert everything == ONE | {"core/registry.py"}


def test_a_module_or_a_program_that_a_string_names_is_in_the_closure(made):
    assert closure(made, "made.loaders.child") == {"loaders/child.py", "loaders/base.py", "core/sizes.py"}
    assert closure(made, "made.loaders.ranks") == {"loaders/ranks.py", "loaders/two.py", *ONE}


def test_a_script_beside_the_package_is_an_entry(made):
    (made.parent / "script.py").write_text("def work():\n    from made.loaders.base import Base\n")
    assert closure(made, "script.py") == {"script.py", "loaders/base.py", "core/sizes.py"}


def test_a_module_that_does_not_exist_is_an_error(made):
    with pytest.raises(ValueError, match=r"made\.loaders\.gone"):
        SourceDigests(made).of("made.loaders.gone")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("loaders/base.py", "A loader.", "Another docstring."),
        ("loaders/base.py", "class Base:", "# a comment\nclass  Base :  # and another"),
        ("loaders/base.py", '"""What both share."""\n', ""),
        ("core/registry.py", '"one"', '"three"'),
        ("loaders/two.py", "base, one", "one"),
        ("report/page.py", "one", "two"),
    ],
)
def test_what_is_not_run_does_not_count(made, file, old, new):
    before = SourceDigests(made).of("made.loaders.one", rooms=ROOMS)
    text = (made / file).read_text()
    (made / file).write_text(text.replace(old, new))
    assert text != (made / file).read_text()
    assert SourceDigests(made).of("made.loaders.one", rooms=ROOMS) == before


@pytest.mark.parametrize("file", sorted(ONE))
def test_an_edit_of_any_file_of_the_closure_counts(made, file):
    before = SourceDigests(made).of("made.loaders.one", rooms=ROOMS)
    with (made / file).open("a") as more:
        more.write("MORE = 1\n")
    assert SourceDigests(made).of("made.loaders.one", rooms=ROOMS) != before


def test_other_files_count_byte_by_byte(made):
    (made / "core/kernel.cu").write_text("one")
    before = SourceDigests(made).of("made.core.sizes", files=("core/*.cu",))
    assert before != SourceDigests(made).of("made.core.sizes")
    (made / "core/kernel.cu").write_text("two")
    digest.cache_clear()
    assert before != SourceDigests(made).of("made.core.sizes", files=("core/*.cu",))


def test_what_is_kept_is_parsed_again_only_where_it_changed(made, tmp_path, monkeypatch):
    known = tmp_path / "kept/known.json"
    before = SourceDigests(made, known).of("made.loaders.one", rooms=ROOMS)
    (made / "core/sizes.py").write_text("SIZE = 4\n")
    parsed = []
    parse = SourceDigests._parse
    monkeypatch.setattr(
        SourceDigests, "_parse", lambda self, file, text: parsed.append(file) or parse(self, file, text)
    )
    after = SourceDigests(made, known).of("made.loaders.one", rooms=ROOMS)
    assert parsed == ["made/core/sizes.py"]
    assert after == SourceDigests(made).of("made.loaders.one", rooms=ROOMS) != before
    known.write_text("not JSON")
    assert SourceDigests(made, known).of("made.loaders.one", rooms=ROOMS) == after


def test_every_room_is_there():
    assert [room for room in MEASURING if not (PACKAGE / room).is_dir()] == list(COMPUTING)
    assert all((PACKAGE / f"{room}.py").is_file() for room in COMPUTING)
