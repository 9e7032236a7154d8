"""Print the demo's table from simulated runs: what a measurement would add is "-"."""  # noqa: INP001 (a script)

import json
import sys
from pathlib import Path

summaries = [json.loads(p.read_text()) for p in sorted(Path(sys.argv[1]).glob("*/summary.json"))]
rows = [("scheduler", "predicted", "measured", "difference", "reconfigurations", "run")]
rows += [
    (
        summary["scheduler"],
        f"{summary['iteration_ns'] / 1e6:.3f} ms",
        "-",
        "-",
        f"{summary['reconfigurations']:.1f}",
        sys.argv[1],
    )
    for summary in summaries
    if summary["iteration_ns"] is not None
]
widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
for row in rows:
    print("  ".join(map(str.ljust, row, widths)).rstrip())  # noqa: T201 (its purpose)
