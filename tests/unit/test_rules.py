"""What the library knows of the rules, without importing Snakemake."""

import re
from collections import Counter

from data_fixtures import REPOSITORY

from gpufeed.core.config import RULES


def test_the_names_that_no_experiment_may_bear_are_those_of_the_rules():
    files = (REPOSITORY / "Snakefile", *sorted((REPOSITORY / "rules").rglob("*.smk")))
    text = "\n".join(file.read_text() for file in files)
    assert Counter(RULES) == Counter(re.findall(r"^(?:rule|checkpoint) (\w+):", text, re.MULTILINE))


def test_rules_are_wiring_alone():
    rules = sorted((REPOSITORY / "rules").rglob("*.smk"))
    assert 1 < len(rules) <= 12
    functions = re.compile(r"^\s*(def|class) ", re.MULTILINE)
    assert [file.name for file in rules if functions.search(file.read_text())] == []
