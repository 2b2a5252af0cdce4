"""Plug-ins: suites, layers and devices of other packages, which name them as entry points.

    [project.entry-points."flopwatch.suites"]
    norms = "my_package.norms"             # a module that is a suite file

    [project.entry-points."flopwatch.layers"]
    low-rank = "my_package.low_rank"       # a module that calls `register("low-rank", ...)`

    [project.entry-points."flopwatch.devices"]
    abacus = "my_package.devices:DEVICES"  # a `Device`, or several

A plug-in that you ask for by name and that is broken is an error; any other one that is broken is
left out, with a sentence. A suite is found without importing it, and a layer is imported when its
name is used; devices are imported when one is looked up, since a driver may report any of their
names.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flopwatch.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group = Literal["flopwatch.suites", "flopwatch.layers", "flopwatch.devices"]


@cache
def find_plugins(group: Group) -> dict[str, EntryPoint]:
    """By name. Of two with one name, the first that Python finds counts."""
    from importlib.metadata import entry_points  # takes longer than most of our own modules

    found: dict[str, EntryPoint] = {}
    for plugin in entry_points(group=group):
        known = found.setdefault(plugin.name, plugin)
        if known.value != plugin.value:  # a package may be found twice, installed and in a folder
            why = f"{name_package(known)} has a plug-in of that name, too"
            say_left_out(describe(plugin, why))
    return found


def load_plugin(plugin: EntryPoint) -> Any:
    """What it names. Raises PluginError, whatever goes wrong in it."""
    try:
        return plugin.load()
    except (Exception, SystemExit) as error:
        raise PluginError(describe(plugin, f"{type(error).__name__}: {error}")) from error


def find_module_file(plugin: EntryPoint) -> Path:
    """The file of the module that it names, which is not imported, nor is its package."""
    top, *inner = plugin.module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    folders = [] if spec is None else spec.submodule_search_locations or []
    candidates = [Path(folder, *inner) for folder in folders]
    files = [f for c in candidates for f in (c.with_name(f"{c.name}.py"), c / "__init__.py")]
    if spec is not None and spec.origin and not inner:
        files = [Path(spec.origin)]
    for file in files:
        if file.is_file() and file.suffix == ".py":
            return file
    raise PluginError(describe(plugin, f"there is no file of the module {plugin.module}"))


def list_packages() -> set[str]:
    """Whose code is measured: the top-level packages of all suites and layers, by the names that
    they are imported by."""
    groups: tuple[Group, ...] = ("flopwatch.suites", "flopwatch.layers")
    found = [plugin for group in groups for plugin in find_plugins(group).values()]
    return {plugin.module.partition(".")[0] for plugin in found}


def name_package(plugin: EntryPoint) -> str:
    return "an unknown package" if plugin.dist is None else str(plugin.dist.name)


def describe(plugin: EntryPoint, why: str) -> str:
    """What is wrong with it and what to do, as a sentence for an error."""
    kind = plugin.group.removeprefix("flopwatch.").removesuffix("s")
    why = " ".join(why.split())
    package = name_package(plugin)
    return (
        f"the {kind} {plugin.name!r} of {package} cannot be used: {why}; update {package} or "
        "uninstall it"
    )


@cache  # once is enough
def say_left_out(sentence: str) -> None:
    """On stderr, unless the program that uses flopwatch has set up logging."""
    import logging

    from flopwatch.output.units import printable

    logging.getLogger("flopwatch").warning("flopwatch: %s", printable(sentence))
