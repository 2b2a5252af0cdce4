"""What MkDocs does not do by itself, when `make docs` builds the site.

Pages link to files of the repository, as they must on a forge: ``../SECURITY.md``, ``../src/...``.
In the site the root's pages become pages, and any other file becomes a text to open. The notebook
becomes a page with the outputs that it was saved with. Everything works offline, since all of it is
copied.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"
UP = re.compile(r"\]\(\.\./([\w./-]+?)((?:#[\w-]+)?)\)")
"""A link out of docs/."""
DOWN = re.compile(r"\]\(docs/([\w./-]+?)((?:#[\w-]+)?)\)")
"""A link of a page in the root into docs/."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in ROOT_PAGES:
        text = (ROOT / name).read_text()
        files.append(File.generated(config, name, content=DOWN.sub(r"](\1\2)", text)))
    page = render_notebook(json.loads(NOTEBOOK.read_text()))
    files.append(File.generated(config, "notebooks/first_steps.md", content=page))
    for name in find_linked_files():
        text = (ROOT / name).read_text()
        files.append(File.generated(config, place(name), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if "/" in page.file.src_uri:  # one level down, ../ is docs/ itself
        return markdown
    return UP.sub(lambda found: f"]({place(found[1])}{found[2]})", markdown)


def place(name: str) -> str:
    """Where a file of the repository is in the site.

    >>> place("SECURITY.md"), place("src/flopwatch/suites/builtin/dyad.py")
    ('SECURITY.md', 'source/src/flopwatch/suites/builtin/dyad.py.txt')
    """
    return name if name in ROOT_PAGES else f"source/{name}.txt"


def find_linked_files() -> list[str]:
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    linked = {found[1] for text in pages for found in UP.finditer(text)}
    return sorted(linked - set(ROOT_PAGES))


def render_notebook(notebook: dict[str, Any]) -> str:
    """Markdown as it is, code as blocks, outputs as HTML where there is some, else as text."""
    rendered = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            rendered.append(source)
            continue
        rendered.append(f"```python\n{source}\n```")
        rendered += [shown for output in cell["outputs"] if (shown := render_output(output))]
    return "\n\n".join(rendered) + "\n"


def render_output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        # Progress goes to stderr, and is over.
        return f"```text\n{''.join(output['text'])}\n```" if output["name"] == "stdout" else ""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return f'<div class="output">{"".join(data["image/svg+xml"])}</div>'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    return f"```text\n{''.join(data.get('text/plain', ''))}\n```"
