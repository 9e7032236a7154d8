"""How long a large Kineto trace takes to read, and how much memory.

    python benchmarks/kineto_import.py TRACE.json.gz [MEGABYTES [FILES]]

Repeats the events of a real trace until the file has MEGABYTES (90), then reads it in a process of
its own; with FILES, in so many processes, as many at once as there are processors. First another
process only parses the file, with Python's json: processor time is told beside it, because on a
machine with other work wall time says little.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from testbed.files.codec import read_bytes


def enlarge(trace: Path, target: Path, megabytes: int) -> int:
    """Write `trace` with its events repeated to about `megabytes`; return the size in bytes."""
    data = read_bytes(trace)
    start = data.index(b"[", data.index(b'"traceEvents"')) + 1
    end = data.rindex(b"]")
    events = data[start:end].strip()
    copies = max(1, -(-(megabytes * 10**6 - len(data)) // (len(events) + 1)) + 1)
    whole = b",".join([events] * copies)
    extra = len(whole) - megabytes * 10**6
    if extra > 0:  # cut at an event's end
        cut = whole.rindex(b"},", 0, len(whole) - extra)
        while whole[cut + 1 : cut + 40].find(b'"ph"') < 0:
            cut = whole.rindex(b"},", 0, cut)
        whole = whole[: cut + 1]
    target.write_bytes(data[:start] + whole + data[end:])
    return target.stat().st_size


def spent(began: tuple[float, float], what: str) -> str:
    """Say what a process took since `began`: wall and processor time, and memory at its most."""
    wall_s, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent's as well
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return f"{wall_s:.2f} s ({cpu_s:.2f} s of processor), peak {peak:.0f} MiB, {what}"


def measure(path: Path) -> None:
    """Read `path` and print what it took."""
    from testbed.traces.loading import load_recordings

    began = time.perf_counter(), time.process_time()
    (recording,) = load_recordings(path)
    print(spent(began, f"{recording.kernels} kernels"))


def parse_only(path: Path) -> None:
    """Parse `path` with Python's json and print what it took."""
    began = time.perf_counter(), time.process_time()
    document = json.loads(path.read_bytes())
    print(spent(began, f"json.loads alone, {len(document['traceEvents'])} events"))


def main() -> None:
    """Run the benchmark."""
    trace, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "large.json"
        size = enlarge(Path(trace), path, int(rest[0]) if rest else 90)
        print(f"{size / 1e6:.0f} MB:", end=" ", flush=True)
        files = int(rest[1]) if len(rest) > 1 else 1
        spawning = multiprocessing.get_context("spawn")
        with spawning.Pool(1) as pool:
            pool.map(parse_only, [path])
        began = time.perf_counter()
        with spawning.Pool(min(files, os.cpu_count() or 1), maxtasksperchild=1) as pool:
            pool.map(measure, [path] * files, chunksize=1)
        print(f"{files} files: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
