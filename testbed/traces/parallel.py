"""Reading large Kineto files side by side, each in a process of its own.

Processes are started anew, not forked: this one may have threads. They answer with a pickle, which
is read from our own child only.
"""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.files.codec import GZIP_MAGIC
from testbed.traces.kineto import Kineto
from topologies.errors import FluxbedError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testbed.traces.capture import Recording
    from testbed.traces.sources import Blob

__all__ = ["large_files", "main", "read_side_by_side"]

_HEAD: Final = 2**16
_LARGE_BYTES: Final = 16_000_000
_RATIO: Final = 10  # of JSON to what gzip makes of it, at least
_FEWEST: Final = 2
_CHILD: Final = "import sys; from testbed.traces.parallel import main; main(sys.argv[1])"


def large_files(blobs: Sequence[Blob]) -> list[str]:
    """Return which of `blobs` are large Kineto files; [] when they are too few to be worth it."""
    found = [blob.path for blob in blobs if _is_large(blob.path)]
    return found if len(found) >= _FEWEST else []


def _is_large(name: str) -> bool:
    path = Path(name)
    try:
        size = path.stat().st_size
        if size < _LARGE_BYTES // _RATIO or not path.is_file():
            return False
        with path.open("rb") as raw:
            packed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        if not packed and size < _LARGE_BYTES:
            return False
        with gzip.open(path) if packed else path.open("rb") as stream:
            return Kineto().sniff(stream.read(_HEAD))
    except (OSError, EOFError):
        return False


def read_side_by_side(paths: Sequence[str]) -> dict[str, list[Recording]]:
    """Read Kineto files in as many processes as there are processors; errors as in one."""
    with ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1)) as pool:
        return dict(zip(paths, pool.map(_ask, paths), strict=True))


def _ask(path: str) -> list[Recording]:
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-c", _CHILD, path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        why = f"the process that read it ended with {done.returncode}"
        raise InputError("the file was not read", path, why, "free memory, or give fewer files")
    recordings, refused = pickle.loads(done.stdout)  # noqa: S301 (our child's)
    if refused is not None:
        raise refused
    assert isinstance(recordings, list)
    return recordings


def main(path: str) -> None:
    """Write a pickle of the recordings in `path`, or of why there are none, to standard output."""
    from testbed.traces.sources import open_sources

    recordings: list[Recording] = []
    refused: FluxbedError | None = None
    try:
        for blob in open_sources([path]):
            recordings += Kineto().read(blob)
    except FluxbedError as error:
        refused = error
    pickle.dump((recordings, refused), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
