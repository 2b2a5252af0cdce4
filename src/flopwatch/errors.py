"""The exceptions of flopwatch.

FlopwatchError            one clear sentence for the user; the command line exits with 2
├── UsageError            an option or argument that cannot be honoured
├── SuiteError            a suite that cannot be found, loaded or expanded
├── StoreError            a results file that cannot be read or written
│   ├── CorruptFile       a line that is not a record
│   ├── NewerSchema       a record written by a newer flopwatch
│   ├── RefusedRecord     a record to be stored that no reader could read
│   └── DiskFull          the disk is full
├── PluginError           a plug-in of another package that cannot be used
├── LayerError            a layer that cannot be made or put into a model; a ValueError too
├── WorkerError           the measuring process could not be started
└── MissingPackage        a package of an extra is not installed; an ImportError too

Unsupported               raised by a suite's build function: this combination does not exist.
                          It becomes a record with status "unsupported", not an error.
"""

from __future__ import annotations


class FlopwatchError(Exception):
    """Something the user can mend; its text says what is wrong and what to do."""


class UsageError(FlopwatchError):
    """An option or argument that cannot be honoured."""


class SuiteError(FlopwatchError):
    """A suite that cannot be found, loaded or expanded."""


class StoreError(FlopwatchError):
    """A results file that cannot be read or written."""


class CorruptFile(StoreError):
    """A line of a results file that is not a record."""


class NewerSchema(StoreError):
    """A record that a newer flopwatch has written."""


class RefusedRecord(StoreError):
    """A record that was not stored, since nobody could read it."""

    def __init__(self, record: str, reason: str) -> None:
        super().__init__(f"{record} was not stored: {reason}")
        self.reason = reason


class DiskFull(StoreError):
    """The disk is too full for the next record."""


class PluginError(FlopwatchError):
    """A plug-in of another package that cannot be used."""


class LayerError(FlopwatchError, ValueError):
    """A layer that cannot be made as asked, put into a model, or given such an input."""


class WorkerError(FlopwatchError):
    """The measuring process could not be started."""


class MissingPackage(FlopwatchError, ImportError):
    """A package that is not installed, and the extra that installs it."""


class Unsupported(Exception):
    """Raise it in a suite's build function where a combination does not exist."""
