"""Models by the names that they were published with: ``data/models.toml``.

A name may be spelled in many ways: in capitals, with and without hyphens, with the organisation
before it and words such as Instruct behind it. A part of it is enough where only one model has it:

    llama-3-8b, llama3-8b, Llama-3-8B-Instruct, meta-llama/Meta-Llama-3-8B
    405b, 8x22b
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.model_configs import read_config
from flopwatch.jobs.model_shapes import Shape

OWN = ("name", "published", "also")
"""Keys of a line that are not of the configuration."""
NULLS = ("sliding_window", "q_lora_rank")
"""Settings whose 0 stands for null, which TOML does not have."""
TAILS = ("instruct", "chat", "base", "hf", "it", "pt", "deduped", "preview", "thinking")
"""Words behind a name that do not change the dimensions."""
DATE = re.compile(r"\d{4}")
"""Behind a name, likewise."""
HEADS = ("meta", "facebook", "nvidia")
"""Words before it."""
MOST_NAMED = 8
"""Names in a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedModel:
    name: str
    family: str
    source: str
    published: float
    """Parameters, as its authors say."""
    config: Mapping[str, Any] = field(hash=False)
    """In the words of the library transformers."""
    also: tuple[str, ...] = ()
    """Other names."""

    @property
    def shape(self) -> Shape:
        return _find_zoo_shape(self.name)


@cache
def _find_zoo_shape(name: str) -> Shape:
    return read_config(load_zoo()[name].config, name)


@cache
def load_zoo() -> dict[str, NamedModel]:
    """All of them by name."""
    text = files("flopwatch.jobs").joinpath("data/models.toml").read_text("utf-8")
    return {
        line["name"]: _read_line(family, line)
        for family in tomllib.loads(text)["family"]
        for line in family["models"]
    }


def _read_line(family: Mapping[str, Any], line: Mapping[str, Any]) -> NamedModel:
    own = {name: value for name, value in line.items() if name not in OWN}
    config = {**family["config"], **own}
    return NamedModel(
        name=line["name"],
        family=family["name"],
        source=family["source"],
        published=float(line["published"]),
        config={
            name: value or (None if name in NULLS else value) for name, value in config.items()
        },
        also=tuple(line.get("also", ())),
    )


@cache
def _list_spellings() -> dict[str, str]:
    """Names by how they are compared: by their words, or where that leaves one, without hyphens."""
    words = {
        _simplify(spelling): model.name
        for model in load_zoo().values()
        for spelling in (model.name, *model.also)
    }
    squeezed = Counter(spelling.replace("-", "") for spelling in words)
    return words | {
        spelling.replace("-", ""): name
        for spelling, name in words.items()
        if squeezed[spelling.replace("-", "")] == 1
    }


def find_named(name: str, *, exactly: bool = False) -> NamedModel | None:
    """The model with this name, or unless `exactly` with this in its name; None: there is none.
    UsageError where there are several.

    >>> find_named("meta-llama/Meta-Llama-3-8B").name, find_named("405b").name
    ('llama-3-8b', 'llama-3.1-405b')
    """
    zoo, spellings = load_zoo(), _list_spellings()
    simple = _simplify(name)
    for spelling in (simple, simple.replace("-", "")):
        if spelling in spellings:
            return zoo[spellings[spelling]]
    if exactly:
        return None
    found = _list_containing(name)
    if len(found) > 1:
        raise UsageError(
            f"there is no model {name!r} alone; {_list_some(found)} have that in their names: "
            "choose one"
        )
    # A size stands for its model, but a word such as tiny may mean anything.
    has_size = any(letter.isdigit() for letter in name)
    return zoo[found[0]] if found and has_size else None


def _list_containing(name: str) -> list[str]:
    words = split_name(name)
    return [known for known in load_zoo() if contains_words(split_name(known), words)]


def suggest(name: str, others: Sequence[str] = ()) -> list[str]:
    """Names that are nearly spelled so.

    >>> suggest("lama-3-8b")[0]
    'llama-3-8b'
    """
    known = {**_list_spellings(), **{_simplify(other): other for other in others}}
    near = get_close_matches(_simplify(name), known, n=6, cutoff=0.6)
    return list(dict.fromkeys([*_list_containing(name), *(known[each] for each in near)]))[:3]


def _list_some(names: Sequence[str]) -> str:
    left = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {left} more" if left > 0 else "")


def _simplify(name: str) -> str:
    words = split_name(name)
    while len(words) > 1 and words[0] in HEADS:
        words = words[1:]
    while len(words) > 1 and (words[-1] in TAILS or DATE.fullmatch(words[-1])):
        words = words[:-1]
    return "-".join(words)


def split_name(name: str) -> list[str]:
    """The words of a name, without the organisation.

    >>> split_name("meta-llama/Llama3.1-8B_Instruct")
    ['llama', '3.1', '8b', 'instruct']
    """
    spaced = re.sub(r"([a-z]{3,})(\d)", r"\1-\2", name.rpartition("/")[2].lower())
    return [word for word in re.split(r"[-_ ]", spaced) if word]


def contains_words(words: Sequence[str], wanted: Sequence[str]) -> bool:
    places = range(len(words) - len(wanted) + 1)
    return bool(wanted) and any(
        words[place : place + len(wanted)] == list(wanted) for place in places
    )
