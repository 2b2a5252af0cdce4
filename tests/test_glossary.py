"""The words that we do not use, in code, messages, documentation and tests.

One thing has one name: `breakdown`, not `ledger`. Common English words with another meaning
somewhere (text, product, context) are not listed: a reader finds those.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSTEAD = {
    "9 of 10": "90 % interval",
    "attendant": "rank",
    "bf16-autocast": "bf16-mixed",
    "checkpointed": "recompute = full",
    "--checkpoint": "--recompute",
    "--checkpointing": "--recompute",
    "companion": "rank",
    "computed again": "recomputed",
    "confess": "warning",
    "crew": "ranks",
    "crossover": "break-even",
    "doubt": "warning",
    "follower": "rank",
    "foretell": "predict",
    "foretold": "predicted",
    "full-shard": "full",
    "gathering": "ranks",
    "grad-op-shard": "zero2",
    "harvest": "records of a group",
    "hybrid-shard": "hybrid",
    "ladder": "sizes",
    "leader": "rank 0",
    "ledger": "breakdown",
    "like for like": "comparable",
    "muster": "ranks",
    "one does not have": "you don't have",
    "pays from": "break-even",
    "picture": "plot",
    "seat": "rank",
    "--shard": "--sharding",
}
"""By the word that we do not use, with any ending: ours."""


def compile_pattern(word: str) -> re.Pattern[str]:
    words = "[ _-]".join(map(re.escape, word.split()))
    ending = "" if word.startswith("--") else "(?:s|es|ed|ing)?"
    return re.compile(rf"(?<![a-z-]){words}{ending}(?![a-z-])", re.IGNORECASE)


PATTERNS = {word: compile_pattern(word) for word in INSTEAD}
ALLOWED = {
    "tests/test_glossary.py": set(INSTEAD),
    # What was renamed is still answered with its new name.
    "CHANGELOG.md": {"--checkpoint", "--checkpointing", "--shard", "crossover"},
    "src/flopwatch/cli/main.py": {"crossover", "--checkpoint", "--checkpointing", "--shard"},
    "src/flopwatch/jobs/parallelism.py": {"full-shard", "grad-op-shard", "hybrid-shard"},
    "src/flopwatch/jobs/training_job.py": {"checkpointed"},
    "tests/suites/test_training.py": {"full-shard"},
}
"""By file: the words that it has a reason to use."""


def list_files() -> list[Path]:
    folders = [ROOT / name for name in ("benchmarks", "docs", "src", "tests")]
    found = [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in {".css", ".js", ".md", ".py", ".sh", ".txt"}
        and not {"data", "__pycache__"} & set(path.parts)
        and "egg-info" not in str(path)
    ]
    return [*found, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]


def find_words(text: str) -> set[str]:
    """
    >>> sorted(find_words("The LIKE_FOR_LIKE crews of full-shard"))
    ['crew', 'full-shard', 'like for like']
    """
    return {word for word, pattern in PATTERNS.items() if pattern.search(text)}


def test_no_file_uses_a_word_that_is_not_ours() -> None:
    files = {
        path.relative_to(ROOT).as_posix(): find_words(path.read_text()) for path in list_files()
    }
    found = {
        name: {word: INSTEAD[word] for word in sorted(words - ALLOWED.get(name, set()))}
        for name, words in files.items()
    }

    assert len(files) > 300
    assert {name: words for name, words in found.items() if words} == {}


def test_no_name_of_a_file_is_such_a_word() -> None:
    assert [path.name for path in list_files() if find_words(path.stem)] == []


@pytest.mark.parametrize("name", ALLOWED)
def test_words_are_allowed_only_where_they_are_used(name: str) -> None:
    assert ALLOWED[name] <= find_words((ROOT / name).read_text())
