"""Two git revisions of a project, each checked out into a folder of its own and built there.

The user's own checkout is only read: revisions go into worktrees in a private temporary folder,
which are removed at the end. Without a second revision, the checkout itself is the other side, with
whatever is not committed yet.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flopwatch.errors import UsageError

WORK_TREE = "work tree"
"""The name of the checkout as it is."""
BUILD_LIMIT_S = 3600.0
MOST_SHOWN = 1500
"""Characters of the end of what a failed build has printed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    name: str
    """As the user wrote it."""
    commit: str
    folder: Path

    @property
    def label(self) -> str:
        return self.name if self.commit.startswith(self.name) else f"{self.name} ({self.commit})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkouts:
    base: Revision
    head: Revision
    changed: list[str]
    """Files in which they differ."""


@contextmanager
def check_out(base: str, head: str | None, repository: Path) -> Iterator[Checkouts]:
    """Both revisions of the repository that this folder is in; removed on leaving."""
    root = Path(_ask_git(repository, "rev-parse", "--show-toplevel"))
    commits = {name: _find_commit(root, name) for name in (base, head) if name is not None}
    # With the work tree, what is not committed counts, too.
    sides = [commits[base], *([commits[head]] if head is not None else [])]
    changed = _ask_git(root, "diff", "--name-only", *sides).splitlines()
    with ExitStack() as stack:
        holder = stack.enter_context(tempfile.TemporaryDirectory(prefix="flopwatch-ab-"))

        def add(name: str, place: str) -> Revision:
            folder = Path(holder).resolve() / place
            stack.callback(_remove, root, folder)
            _ask_git(root, "worktree", "add", "--detach", str(folder), commits[name])
            return Revision(name=name, commit=commits[name][:10], folder=folder)

        current = Revision(name=WORK_TREE, commit=_find_commit(root, "HEAD")[:10], folder=root)
        yield Checkouts(
            base=add(base, "base"),
            head=current if head is None else add(head, "head"),
            changed=changed,
        )


def build(revision: Revision, command: str) -> None:
    """Run the user's command in the folder of the revision."""
    try:
        finished = subprocess.run(
            command,
            shell=True,
            cwd=revision.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"--build of {revision.label} took over {BUILD_LIMIT_S:g} s and was ended"
        ) from None
    if finished.returncode:
        end = finished.stdout.decode(errors="replace").strip()[-MOST_SHOWN:]
        raise UsageError(
            f"--build of {revision.label} failed with exit code {finished.returncode}: {end}"
        )


def list_import_paths(revision: Revision, given: Sequence[str]) -> list[str]:
    """Where the modules of a revision are imported from: the folders that the user has named, or
    its own and `src`, if there is one."""
    names = list(given) or [name for name in ("src", ".") if (revision.folder / name).is_dir()]
    folders = [(revision.folder / name).resolve() for name in names]
    for name, folder in zip(names, folders, strict=True):
        if not folder.is_dir():
            raise UsageError(
                f"--path {name}: {revision.label} has no such folder; is it made by --build?"
            )
    return [str(folder) for folder in folders]


def _find_commit(root: Path, name: str) -> str:
    try:
        return _ask_git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except UsageError:
        raise UsageError(
            f"there is no revision {name!r} in {root}; in a shallow clone, fetch it first "
            f"(git fetch origin {name}; actions/checkout: fetch-depth: 0)"
        ) from None


def _remove(root: Path, folder: Path) -> None:
    subprocess.run(
        ["git", "-C", str(root), "worktree", "remove", "--force", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def _ask_git(folder: Path, *words: str) -> str:
    try:
        finished = subprocess.run(
            ["git", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"git cannot be run ({error.strerror}); install it") from None
    if finished.returncode:
        why = finished.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise UsageError(f"git {words[0]} failed in {folder}: {why or 'without a word'}")
    return finished.stdout.decode(errors="replace").strip()
