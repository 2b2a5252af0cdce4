"""Results as one self-contained HTML page that opens from disk."""

from flopwatch.output.page.document import (
    TITLE,
    is_report,
    refuse_other_files,
    render_page,
    write_page,
)

__all__ = ["TITLE", "is_report", "refuse_other_files", "render_page", "write_page"]
