"""Reports of runs: an HTML page that opens anywhere, Markdown, CSV and JSON."""

from testbed.report.writing import (
    FORMATS,
    render,
    rewrite_timeline,
    write_comparison,
    write_report,
)

__all__ = ["FORMATS", "render", "rewrite_timeline", "write_comparison", "write_report"]
