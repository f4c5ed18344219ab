"""Whether apptainer gives a container the GPUs: by --nv, or by the variable that stands for it.

As apptainer's own parser has it: an option goes before a variable, APPTAINER_NV before SINGULARITY_NV, which
it reads, too, and of a word in them it wants a truth value in Go's spelling. Singularity reads its own alone.
"""

from collections.abc import Mapping, Sequence

NAMES = ("APPTAINER_NV", "SINGULARITY_NV")
YES, NO = ("1", "t", "T", "true", "True", "TRUE"), ("0", "f", "F", "false", "False", "FALSE")


def has_gpus(words: Sequence[str], set_to: Mapping[str, str]) -> bool:
    """Whether --nv holds, by the options or else by the variables of `in_force`."""
    given = [word.partition("=") for word in words if word.partition("=")[0] == "--nv"]
    if given:
        _, equals, value = given[-1]
        return value in YES if equals else True
    return any(value in YES for value in set_to.values())


def in_force(variables: Mapping[str, str], commands: Mapping[str, str | None]) -> dict[str, str]:
    """The variable that counts and its value, without blanks around it; none where none is set."""
    alone = commands.get("singularity") and not commands.get("apptainer")
    names = [name for name in (NAMES[1:] if alone else NAMES) if name in variables]
    return {name: variables[name].strip() for name in names[:1]}


def unread(words: Sequence[str], set_to: Mapping[str, str]) -> dict[str, str]:
    """A variable whose value is no truth value: apptainer ends with an error, but where --nv is an option."""
    if any(word.partition("=")[0] == "--nv" for word in words):
        return {}
    return {name: value for name, value in set_to.items() if value not in (*YES, *NO, "")}
