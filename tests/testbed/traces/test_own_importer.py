"""An importer of one's own, from a file that knows the facade only, of a trace that has times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.workload import Collective, Compute
from testbed.traces import load_workload

if TYPE_CHECKING:
    from pathlib import Path

IMPORTER = """
import fluxbed

class Timed:
    name = "timed"

    def sniff(self, head):
        return head.startswith(b"timed")

    def read(self, blob):
        rows = [list(map(int, line.split())) for line in blob.load().decode().splitlines()[1:]]
        found = []
        for rank, issued, start, end in rows:
            call = fluxbed.Call(
                kind="all_reduce", in_bytes=4096, out_bytes=4096, members=(0, 1), waited=True,
                issued_ns=issued, start_ns=start, end_ns=end,
            )
            recording = fluxbed.Recording(
                path=blob.path, format=self.name, rank=rank, world=2, timed=True, calls=[call],
                steps=(fluxbed.Step(0, 0, 210_000),),
                busy=fluxbed.Busy.of([(0, 150_000, 0, 0, 0), (161_000, 200_000, 161_000, 0, 0)]),
            )
            found.append(recording)
        return found
"""


def test_times_become_computations_and_what_waits_for_what(tmp_path: Path) -> None:
    importer, trace = tmp_path / "timed.py", tmp_path / "trace.txt"
    importer.write_text(IMPORTER)
    trace.write_text("timed\n0 150000 151000 160000\n1 151000 152000 160000\n")
    workload = load_workload(trace, importer=f"{importer}:Timed")
    computed = [op for op in workload.operations if isinstance(op, Compute)]
    (reduced,) = (op for op in workload.operations if isinstance(op, Collective))
    assert [(op.rank, op.dur_ns) for op in computed] == [
        (0, 150_000), (1, 151_000), (0, 50_000), (1, 50_000),
    ]  # fmt: skip
    assert {rank: part.deps for rank, part in reduced.ranks.items()} == {
        0: (computed[0].id,), 1: (computed[1].id,),
    }  # fmt: skip
    assert computed[2].deps == computed[3].deps == (reduced.id,)
