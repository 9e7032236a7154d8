"""How many hosts and planes one machine carries: a Llama layer under Flux, measured and checked.

    sudo .venv/bin/python benchmarks/hosts.py [HOSTS ...]

Tensor parallelism 4, the rest data parallelism. Prints a row of a Markdown table per case, with the
lateness of the engine against tau. Exits 1 when a run fails, loses a byte or fails its check.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from all_traces import fluxbed

HOSTS: Final = (8, 16, 32, 64)
PLANES: Final = (1, 2, 3, 4)
TAU_NS: Final = 100_000
STEP: Final = ("llama3-8b", "--tp", "4", "--layers", "1", "--seq", "2048", "--mfu", "0.5")


def replay(workload: Path, planes: int, run: Path) -> tuple[bool, str]:
    """Run and check one case; return whether all went well, and its row."""
    fabric = f"rails,planes={planes},rate=800Gbps,delay={TAU_NS}ns"
    done = fluxbed(
        "run", workload, "-t", fabric, "-s", "flux", "-n", "3", "-o", run, "--format", "json"
    )
    if done.returncode:
        return False, done.stderr.strip().splitlines()[-1]
    (row,) = json.loads(done.stdout)
    measures = json.loads((Path(row["run"]) / "manifest.json").read_text())["measures"]
    checked = fluxbed("check", row["run"])
    verdict = "passed" if checked.returncode == 0 else checked.stderr.strip().splitlines()[-1]
    late = 100 * measures["lateness_p99_us"] * 1e3 / row["dilation"] / TAU_NS
    figures = (
        f"{row['messages']} | {row['dilation']:g} | {row['predicted_iteration_ns'] / 1e6:.3f} ms "
        f"| {row['iteration_ns'] / 1e6:.3f} ms | {100 * row['difference']:+.2f} % | {late:.2f} % "
        f"| {row['dropped']} | {row['lost_bytes']} | {row['wall_s']:.1f} s | {verdict}"
    )
    fine = checked.returncode == 0 and not row["lost_bytes"] and not row["dropped"]
    return fine, figures


def main() -> int:
    """Run the benchmark."""
    passed = True
    print(
        "| hosts | planes | messages | D | predicted | measured | difference | late p99 / tau "
        "| drops | lost | wall | check |"
    )
    print("|" + "---|" * 12)
    for hosts in [int(word) for word in sys.argv[1:]] or HOSTS:
        with tempfile.TemporaryDirectory() as directory:
            step = Path(directory) / "step.workload.jsonl"
            options = ("--dp", hosts // 4, "--embeddings", "omitted", "-o", step)
            made = fluxbed("synth", *STEP, *options)
            if made.returncode:
                print(made.stderr, file=sys.stderr)
                return 1
            for planes in PLANES:
                fine, figures = replay(step, planes, Path(directory) / f"planes{planes}")
                passed &= fine
                print(f"| {hosts} | {planes} | {figures} |", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
