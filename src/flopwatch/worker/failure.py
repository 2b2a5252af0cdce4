"""Exceptions of measured code, as status and message of a record.

Which project files a case was built from, so that a changed one is measured again.
"""

from __future__ import annotations

import hashlib
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flopwatch.errors import FlopwatchError, Unsupported
from flopwatch.plugins import list_packages
from flopwatch.records.record import Cause, Status
from flopwatch.worker import limits
from flopwatch.worker.agreement import WrongResult
from flopwatch.worker.instruments import Diverged


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a variant has no times, as its record says it."""

    status: Status
    message: str
    cause: Cause | None = None
    """Why it was skipped; None for every other status."""

    def of_rank(self, rank: int) -> Failure:
        return replace(self, message=f"rank {rank}: {self.message}")


PACKAGE = Path(__file__).resolve().parent.parent
MEASURED_PARTS = ("suites/builtin/", "layers/", "models/")
"""The parts of flopwatch itself that are subjects of measurement; the rest is the engine, whose
version is in the environment."""


def digest_sources(suite_path: Path) -> dict[str, str]:
    """Digests of the loaded modules that belong to the user's project or to plug-ins, by path.

    Paths are relative to the suite file's folder, so that records do not contain
    private paths, and can be checked from anywhere.
    """
    modules = list(sys.modules.items())
    named = {getattr(module, "__file__", None) for _, module in modules}
    # Thousands of modules are loaded, nearly all of them installed: sort those out as text, since
    # resolving every path would take longer than many a measurement.
    installed = tuple(_installed_folders())
    files = {
        Path(file).resolve()
        for file in named
        if file and (file.startswith(f"{PACKAGE}/") or not file.startswith(installed))
    }
    packages = list_packages()
    plugged_in = {
        Path(file).resolve()
        for name, module in modules
        if name.partition(".")[0] in packages and (file := getattr(module, "__file__", None))
    }
    own = {file for file in files | {suite_path} if _is_subject(file, suite_path)}
    chosen = sorted(own | plugged_in)
    # Some modules name a file that does not exist.
    digests = {_name(file, suite_path): digest_file(file) for file in chosen}
    return {name: digest for name, digest in digests.items() if digest is not None}


def is_unchanged(sources: dict[str, str], suite_path: Path) -> bool:
    """Whether the files still are what they were when the record was made."""
    return bool(sources) and all(
        digest_file(suite_path.parent / name) == digest for name, digest in sources.items()
    )


def digest_file(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def is_project_file(file: str) -> bool:
    """Whether a file is neither installed nor part of flopwatch's own machinery."""
    if file.startswith(f"{PACKAGE}/"):
        return file.removeprefix(f"{PACKAGE}/").startswith(MEASURED_PARTS)
    return not file.startswith((*_installed_folders(), "<frozen"))


MODULES = (".py", ".so", ".pyd")


def _is_subject(file: Path, suite_path: Path) -> bool:
    if file == suite_path:
        return True
    if file.is_relative_to(PACKAGE) and file.name == "__init__.py":  # only names, of all layers
        return False
    return file.suffix in MODULES and is_project_file(str(file))


def _name(file: Path, suite_path: Path) -> str:
    return Path(os.path.relpath(file, suite_path.parent)).as_posix()


def _installed_folders() -> set[str]:
    """As they are written in `sys.path` and as they really are, each with a closing slash."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [*(sysconfig.get_path(kind) for kind in kinds), *site.getsitepackages(), site.USER_SITE]
    return {f"{form}/" for path in paths if path for form in (path, os.path.realpath(path))}


LONGEST_TEXT = 10_000
"""Characters of a text that a record keeps; some libraries put whole programs into theirs."""


def shorten(text: str) -> str:
    """Text as a record can hold it: of a limited length, and valid Unicode."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}... (the first {LONGEST_TEXT} of {len(text)} characters)"
    return text.encode(errors="backslashreplace").decode()


def read_text(error: BaseException) -> str:
    """What an exception says; its own code may raise when it is asked."""
    try:
        text = str(error)
    except BaseException as another:
        text = f"its text cannot be read ({type(another).__name__})"
    return shorten(text)


def explain(error: BaseException) -> str:
    """An exception as one line, with the place in the user's code where it arose."""
    message = " ".join(read_text(error).split())
    if isinstance(error, FlopwatchError | Unsupported | WrongResult | Diverged):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_project_file(frame.filename)]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return ": ".join(filter(None, [shorten(type(error).__name__), message])) + shorten(place)


LOSSES = (
    *("connection closed", "connection reset", "connection refused", "broken pipe"),
    *("socket closed", "timed out", "application timeout", "connectfullmesh failed"),
)
"""What torch.distributed says where another rank has ended or stays away, in small letters."""


def is_loss_of_peer(error: BaseException) -> bool:
    """Whether it only means that another rank is gone, which has a reason of its own."""
    if classify(error) == "oom" or is_device_error(error):  # of this rank's device, by NCCL perhaps
        return False
    said = read_text(error).lower()
    return type(error).__name__.startswith("Dist") or any(text in said for text in LOSSES)


OUT_OF_MEMORY = re.compile(
    "|".join(
        (
            r"out of memory",  # CUDA, HIP, MPS, NCCL, Triton, and torch's allocators of all devices
            r"can't allocate memory",  # torch's allocator of the CPU
            r"STATUS_?ALLOC_?FAILED",  # cuBLAS, cuDNN, cuSOLVER, cuSPARSE, hipBLAS, MIOpen
            r"rocblas_status_memory_error",
            r"cudaErrorMemoryAllocation|ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory",
            r"ERROR_OUT_OF_(HOST_|DEVICE_)?(MEMORY|RESOURCES)",  # SYCL and Level Zero
        )
    ),
    re.IGNORECASE,
)
"""What libraries say where memory ran out, of a device or of the host."""

DEVICE_ERRORS = re.compile(
    "|".join(
        (
            r"\b(CUDA|HIP)( driver| runtime)? (error|failure)\b",  # the latter is NCCL's word
            r"device-side assert|illegal memory access|misaligned address",
            r"unspecified launch failure|uncorrectable (ECC|NVLink)",
            r"STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|ALLOC_FAILED|NOT_INITIALIZED)",
            r"ncclUnhandledCudaError|unhandled cuda error",
            r"Triton Error \[|HSA_STATUS_ERROR|\b(UR|PI|ZE)_(RESULT_)?ERROR_",
        )
    ),
    re.IGNORECASE,
)
"""What libraries say after which a device, or its state in this process, cannot be trusted."""


def is_device_error(error: BaseException) -> bool:
    """Whether the process should not use its device any more. Most of these errors come back with
    every later call (CUDA calls them sticky), so that whoever is next would be blamed for them."""
    return any(
        _has_class(link, "AcceleratorError")
        or (isinstance(link, RuntimeError) and DEVICE_ERRORS.search(read_text(link)) is not None)
        for link in _list_chain(error)
    )


def _list_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _has_class(error: BaseException, name: str) -> bool:
    """By its name: this module is for processes without torch, too."""
    return any(kind.__name__ == name for kind in type(error).__mro__)


NO_THREAD = ("can't start new thread", "resource temporarily unavailable")
"""What libraries say where no thread can be started, in small letters: for lack of memory for its
stack, or because there are too many."""


def describe_error(error: BaseException, limit_bytes: int | None) -> Failure:
    """Where there is no memory left, not even for a thread, with the limit."""
    message = explain(error)
    if isinstance(error, MemoryError) or any(text in message.lower() for text in NO_THREAD):
        shortage = limits.describe_shortage(limit_bytes)
        if shortage is not None:
            return Failure("oom", f"{message}: {shortage}")
    return Failure(classify(error), message)


def classify(error: BaseException) -> Status:
    """The status that an exception gives its variant."""
    message = read_text(error)
    if isinstance(error, MemoryError) or _has_class(error, "OutOfMemoryError"):
        return "oom"
    if isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(message):
        return "oom"
    if isinstance(error, WrongResult | Diverged):
        return "wrong"
    if isinstance(error, Unsupported | NotImplementedError) or "not implemented for" in message:
        return "unsupported"
    return "crash"
