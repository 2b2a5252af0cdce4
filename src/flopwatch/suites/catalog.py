"""Finding and loading suite files: those of flopwatch, of plug-ins and of users.

The runner finds a suite and reads its text; only a worker process loads it.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flopwatch.errors import FlopwatchError, PluginError, SuiteError
from flopwatch.plugins import (
    describe,
    find_module_file,
    find_plugins,
    name_package,
    say_left_out,
)
from flopwatch.suites.suite import Suite

BUILT_IN = Path(__file__).parent / "builtin"
TEMPLATE = Path(__file__).parent / "template.py.txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteFile:
    name: str
    """What ``flopwatch run`` calls it."""
    path: Path
    summary: str
    """First line of the file's docstring."""
    package: str | None = None
    """The package whose plug-in it is; None for one of flopwatch or a user."""


def list_built_in() -> list[SuiteFile]:
    paths = sorted(path for path in BUILT_IN.glob("*.py") if not path.name.startswith("_"))
    return [_read_suite_file(path) for path in paths]


def list_plugged_in() -> list[SuiteFile]:
    """Those of other packages; what is wrong with one is said, and it is left out."""
    found = []
    for name in sorted(find_plugins("flopwatch.suites")):
        try:
            found.append(_find_plugged_in(name))
        except FlopwatchError as error:
            say_left_out(str(error))
    return found


def _find_plugged_in(name: str) -> SuiteFile:
    plugin = find_plugins("flopwatch.suites")[name]
    if (BUILT_IN / f"{name}.py").is_file():
        raise PluginError(describe(plugin, "flopwatch has a suite of that name"))
    try:
        return _read_suite_file(find_module_file(plugin), name, name_package(plugin))
    except SuiteError as error:
        raise PluginError(describe(plugin, str(error))) from None


def list_names() -> list[str]:
    """Of all that have one."""
    built_in = [suite.name for suite in list_built_in()]
    return list(dict.fromkeys([*built_in, *sorted(find_plugins("flopwatch.suites"))]))


def find_suite(name: str) -> SuiteFile:
    """The file behind a suite's name or a path, its syntax checked, nothing imported."""
    if name.endswith(".py") or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise SuiteError(
                f"no suite file {name}; `flopwatch run --new {name}` writes a template"
            )
        return _read_suite_file(path.resolve())
    path = BUILT_IN / f"{name}.py"
    if path.is_file() and not name.startswith("_"):
        return _read_suite_file(path)
    if name in find_plugins("flopwatch.suites"):
        return _find_plugged_in(name)
    known = list_names()
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}" if close else f"there are {', '.join(known)}"
    raise SuiteError(f"no suite {name!r}; {hint}, or is it a file of yours, {name}.py?")


def load_suite(path: Path) -> Suite:
    """Import a suite file and return the suite in it. For worker processes."""
    package_module = _find_package_module(path)
    module_name = package_module or path.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise SuiteError(f"{path.name} cannot be imported as Python")
    if package_module is None:
        sys.path.insert(0, str(path.parent))  # so that it finds the modules next to it
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickling look their module up here
    spec.loader.exec_module(module)
    suites = [value for value in vars(module).values() if isinstance(value, Suite)]
    if len(suites) != 1:
        raise SuiteError(
            f"{path.name} holds {len(suites)} suites; a suite file declares exactly one "
            "`suite = flopwatch.Suite(...)` at its top level"
        )
    if not suites[0].can_build:
        raise SuiteError(f"{path.name} has no build function; decorate one with @suite.build")
    return suites[0]


def _find_package_module(path: Path) -> str | None:
    """The module that it is in its package, so that it can import its neighbours as usual; None for
    a file of a user's, which may lie in any folder."""
    if path.parent == BUILT_IN:
        return f"flopwatch.suites.builtin.{path.stem}"
    for plugin in find_plugins("flopwatch.suites").values():
        with suppress(PluginError):
            if find_module_file(plugin) == path:
                return plugin.module
    return None


def write_template(path: Path) -> None:
    """Write a suite that runs as it is. An existing file is never overwritten."""
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise SuiteError(
            f"{path.name} is no name for a suite file; use letters, digits and _ and end it in .py"
        )
    text = TEMPLATE.read_text(encoding="utf-8").format(name=path.stem)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SuiteError(f"{path} exists already; choose another name") from None
    except OSError as error:
        raise SuiteError(f"{path} cannot be written ({error.strerror})") from None


def _read_suite_file(path: Path, name: str | None = None, package: str | None = None) -> SuiteFile:
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        line = (error.text or "").strip()
        where = f"{path.name}, line {error.lineno}" if error.lineno else path.name
        shown = f": {line}" if line else ""
        raise SuiteError(f"{where} is not valid Python ({error.msg}){shown}") from None
    except ValueError as error:  # a NUL byte
        raise SuiteError(f"{path.name} is not Python text ({error})") from None
    except OSError as error:
        raise SuiteError(f"{path.name} cannot be read ({error.strerror})") from None
    docstring = ast.get_docstring(tree) or ""
    summary = docstring.partition("\n")[0]
    return SuiteFile(name=name or path.stem, path=path, summary=summary, package=package)
