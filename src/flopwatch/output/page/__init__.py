"""Results as one self-contained HTML page that opens from disk."""

from flopwatch.output.page.document import TITLE, is_report, render_page

__all__ = ["TITLE", "is_report", "render_page"]
