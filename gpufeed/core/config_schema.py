"""Checks a config or hyper-parameters against their schema, and explains the first error.

The workflow imports this while it plans, so it needs nothing beyond what Snakemake itself brings.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from gpufeed.core.errors import GpufeedError, unknown

SCHEMAS = Path(__file__).resolve().parent / "schemas"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is eight times faster, at every start
TEXT = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:value")  # the latter: a bare `=`
MERGE = "tag:yaml.org,2002:merge"  # `<<`, of which a mapping may have several


def is_integer(checker: object, value: object) -> bool:
    """Return whether a value is an int; JSON Schema would also accept 32.0."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(checker: object, value: object) -> bool:
    """Return whether a value is a finite number that a float can hold; YAML and JSON readers give NaN too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN


def read_yaml(text: str, place: str) -> Any:
    """Return the plain values of a YAML text; place: its name in errors.

    Raises GpufeedError for a duplicate key, and yaml.YAMLError for invalid YAML.
    """
    loader = LOADER(text)
    try:
        node = loader.get_single_node()
        if node is None:  # empty, or comments alone
            return None
        check_keys(loader, node, place)
        return loader.construct_document(node)
    except (ValueError, RecursionError) as error:  # a date of the 13th month; a thousand brackets
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from error
    finally:
        loader.dispose()


def check_keys(loader: Any, root: yaml.Node, place: str) -> None:
    """Raise GpufeedError for the first duplicate key of a mapping; YAML would silently keep the last."""
    left, seen = [(root, "")], set()
    while left:
        node, path = left.pop()
        if id(node) in seen:  # an alias of an anchor
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += [(entry, f"{path}{index}.") for index, entry in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            lines: dict[Any, int] = {}
            for key, value in node.value:
                left.append((value, f"{path}{key.value}."))
                if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                    continue
                name = key.value if key.tag in TEXT else loader.construct_object(key)
                line = key.start_mark.line + 1
                if name in lines:
                    raise GpufeedError(
                        f"key '{path}{key.value}' twice in {place}, in lines {lines[name]} and {line}",
                        "each key once: only the last one would count",
                        "rename one of them, or merge the two",
                    )
                lines[name] = line


def check_files(paths: Iterable[str | Path]) -> None:
    """Raise GpufeedError for a duplicate key in one of these files.

    Snakemake has read the files, and reports all other errors in them.
    """
    for path in map(Path, paths):
        if path.is_file():  # a pipe can be read only once
            try:
                text = path.read_text(encoding="utf-8").replace("\t", " ")  # JSON may have tabs
                read_yaml(text, str(path))
            except (OSError, UnicodeDecodeError, yaml.YAMLError):
                continue


def read_schema(name: str) -> Any:
    """Return a schema as plain values."""
    return read_yaml((SCHEMAS / f"{name}.schema.yaml").read_text(), f"the schema {name}")


@cache
def validator(name: str) -> Validator:
    """Return the validator of a schema: `config`, `hyper` or `site`."""
    types = Draft202012Validator.TYPE_CHECKER.redefine_many({"integer": is_integer, "number": is_number})
    return extend(Draft202012Validator, type_checker=types)(read_schema(name))


def first_error(name: str, instance: object) -> ValidationError | None:
    """Return the first violation of a schema, in the order of the paths; None if there is none."""
    errors = validator(name).iter_errors(instance)
    return min(errors, key=lambda error: [str(part) for part in error.absolute_path], default=None)


BOUNDS = {
    "type": "type",
    "enum": "one of:",
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "pattern": "matching",
    "multipleOf": "a multiple of",
    "minItems": "entries: at least",
    "maxItems": "entries: at most",
    "uniqueItems": "no entry twice",
    "minLength": "characters: at least",
    "minProperties": "keys: at least",
}


def bounds(schema: Mapping) -> str:
    """Return in words what a schema allows."""
    parts = []
    for key, words in BOUNDS.items():
        if key in schema:
            value = schema[key]
            told = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            parts.append(words if value is True else f"{words} {told}")
    description = schema.get("description", "")
    return f"{'; '.join(parts)} ({description})" if parts and description else description or "; ".join(parts)


def one_value(schema: Mapping) -> Mapping:
    """Return the schema of a single value, if a list is allowed too."""
    types = schema.get("type")
    if not isinstance(types, list) or "array" not in types:
        return schema
    kept = {
        key: value
        for key, value in schema.items()
        if key not in ("items", "minItems", "maxItems", "uniqueItems")
    }
    return kept | {"type": [name for name in types if name != "array"]}


def explain(
    error: ValidationError,
    place: str = "the config",
    path: Iterable[str | int] | None = None,
    lists: bool = True,
) -> GpufeedError:
    """Return a schema violation as found / expected / what to do.

    path: of the wrong value within `place`. lists: whether the message may mention lists.
    """
    key = ".".join(str(part) for part in (error.absolute_path if path is None else path))
    where = f"{key} in {place}" if key else place
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        allowed = error.schema.get("properties", {})
        extra = next(name for name in error.instance if name not in allowed)
        if not allowed:
            return GpufeedError(f"key {extra!r} in {where}", "no options", f"remove {extra!r}")
        return unknown("key", extra, allowed, where)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        described = error.schema["properties"][missing].get("description", "")
        return GpufeedError(
            f"no {missing!r} in {where}", described or f"a {missing}", f"add {missing!r} to {where}"
        )
    found = f"{key}: {error.instance!r}, in {place}" if key else f"{error.instance!r} as {place}"
    allowed = error.schema if lists else one_value(error.schema)
    return GpufeedError(found, bounds(allowed), f"correct {where}")
