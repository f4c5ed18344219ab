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


def test_what_snakemake_compares_of_a_repeat_has_two_numbers_at_most():
    """It compares params as one set: with three, attempt 3 after 2 would look the same in repeat 2."""
    text = (REPOSITORY / "rules/measure.smk").read_text().partition("params:")[2].partition("script:")[0]
    compared = re.findall(r"^        (\w+)=(?!lambda wildcards, output:)", text, re.MULTILINE)
    assert compared == ["cell", "least_s", "attempt", "code"]
