"""An importer of one's own: a CSV of what every rank does, one line an operation, in order.

    rank,operation,value,group
    0,compute,150000,
    0,all_reduce,1048576,0 1
    1,compute,140000,
    1,all_reduce,1048576,0 1

`value` is ns of compute, or the bytes a rank puts into a collective. A rank waits for each of its
collectives before it goes on.

    fluxbed convert --from docs/my_trace.py:CsvTrace steps.csv -o steps.workload.jsonl
"""

from __future__ import annotations

import csv

import fluxbed

HEADER = "rank,operation,value,group"


class CsvTrace:
    """One file is all ranks."""

    name = "csv"

    def sniff(self, head: bytes) -> bool:
        """Tell by a file's first 64 KiB whether it is of this format."""
        return head.startswith(HEADER.encode())

    def read(self, blob: fluxbed.Blob) -> list[fluxbed.Recording]:
        """Return one recording per rank; what cannot be read is an `InputError`."""
        ranks: dict[int, fluxbed.Recording] = {}
        rows = csv.DictReader(blob.load().decode("utf-8", "replace").splitlines())
        for number, row in enumerate(rows, start=2):
            try:
                rank, value = int(row["rank"]), int(row["value"])
                members = tuple(map(int, row["group"].split()))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                where, why = f"{blob.path} line {number}", f"its columns are not {HEADER}"
                fix = "correct the line"
                raise fluxbed.InputError("this is no operation", where, why, fix) from error
            if rank not in ranks:
                ranks[rank] = fluxbed.Recording(
                    path=blob.path, format=self.name, rank=rank, program={0: []}
                )
            self._append(ranks[rank], row["operation"], value, members)
        for recording in ranks.values():
            recording.world = max(ranks) + 1
        return list(ranks.values())

    def _append(
        self, recording: fluxbed.Recording, kind: str, value: int, members: tuple[int, ...]
    ) -> None:
        """Add what the rank does next; it starts when what the rank did before has ended."""
        program = recording.program[0]
        last = program[-1] if program else None
        # work is waited for as it is, a collective as its call
        before = last.call if isinstance(last, fluxbed.Enter) else last
        after = () if before is None else (before,)
        if kind == "compute":
            program.append(fluxbed.Work(None, value, after))
            return
        inside, outside = value, value
        if kind == "all_gather":
            outside = value * len(members)
        elif kind == "reduce_scatter":
            outside = value // len(members)
        call = fluxbed.Call(kind=kind, in_bytes=inside, out_bytes=outside, members=members)
        recording.calls.append(call)
        program.append(fluxbed.Enter(None, call, after))
