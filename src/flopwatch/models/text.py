"""Text that every machine has: the sources of Python's standard library, as bytes."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flopwatch.errors import FlopwatchError

VALIDATION_EVERY = 16
"""One file in so many is kept for validation."""
LIMIT_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    train: bytes
    validation: bytes

    @property
    def digest(self) -> str:
        """Equal where the text is: another Python has other sources."""
        return hashlib.sha256(self.train + b"\0" + self.validation).hexdigest()[:12]


@cache
def read_standard_library() -> Text:
    """The modules at the top of the standard library, in alphabetical order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    if len(texts) < VALIDATION_EVERY:
        raise FlopwatchError(
            f"the sources of Python's standard library are not in {folder}; "
            "use a Python that has them"
        )
    validation = texts[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
    del texts[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
    return Text(train=b"".join(texts)[:LIMIT_BYTES], validation=b"".join(validation))
