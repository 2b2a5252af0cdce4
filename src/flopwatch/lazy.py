"""What is loaded on first use only: the names of a package, and the packages of an extra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flopwatch.errors import MissingPackage

EXTRAS = {
    "vl_convert": "plots",
    "submitit": "slurm",
    "torch": "torch",
    "transformers": "torch",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "prometheus_client": "prometheus",
}
"""By package: the extra of flopwatch that installs it."""


def load_lazily(
    package: str, homes: Mapping[str, str], *, needs: str | None = None
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package, from its names to the modules that they live in; `needs` is
    a package that these import."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if needs is not None:
            require(needs)
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load


class LazyModule:
    """A module that is imported when something of it is used: numpy takes a tenth of a second,
    and most commands do not need it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


def require(package: str) -> None:
    """Raise MissingPackage unless a package of an extra is installed; does not import it."""
    try:
        found = find_spec(package) is not None
    except (ImportError, ValueError):  # refused by an import hook; a module without a spec
        found = False
    if not found:
        raise MissingPackage(explain_missing(package))


def explain_missing(package: str) -> str:
    return (
        f"this needs {package}, which is not installed; "
        f"run: pip install 'flopwatch[{EXTRAS[package]}]'"
    )
