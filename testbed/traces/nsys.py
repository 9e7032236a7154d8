"""Nsight Systems' SQLite export, of an NCCL that marks its network sends.

`nsys export --type sqlite` of a run with an NCCL that writes NVTX marks such as `ncclNetIsend():
Data_Size: N, Sender_Rank: a, Receiver_Rank: b, Channel_ID: c, Sequence: s` (the ATLAHS patches).
Sends only: receives are derived from them, since each node records its own.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from testbed.traces.demand import Message, recordings_of
from topologies.errors import InputError

if TYPE_CHECKING:
    from testbed.traces.capture import Recording
    from testbed.traces.sources import Blob

__all__ = ["Nsys"]

_MAGIC: Final = b"SQLite format 3\x00"
_FIELD: Final = re.compile(r"(\w+):\s*(\d+)")
_SELECT: Final = "SELECT start, text FROM NVTX_EVENTS WHERE text LIKE 'ncclNetIsend%'"


class Nsys:
    """The importer of nsys SQLite exports: one file is one node's sends."""

    name: Final = "nsys"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is an SQLite database."""
        return head.startswith(_MAGIC)

    def read(self, blob: Blob) -> list[Recording]:
        """Read the sends; `InputError` when the database is damaged or has none."""
        try:
            with closing(sqlite3.connect(":memory:")) as database:
                database.text_factory = _text
                database.deserialize(blob.load())
                rows = database.execute(_SELECT).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: of a damaged schema
            text = str(error)
            raise InputError(
                "this is no nsys export",
                blob.path,
                text[:1].lower() + text[1:],
                "export again with nsys export --type sqlite",
            ) from error
        messages, unreadable = [], 0
        for start, text in rows:
            told = dict(_FIELD.findall(str(text)))
            try:
                messages.append(
                    Message(
                        int(start),
                        int(told["Sender_Rank"]),
                        int(told["Receiver_Rank"]),
                        int(told["Data_Size"]),
                        int(told.get("Channel_ID", 0)),
                    )
                )
            except (KeyError, TypeError, ValueError):
                unreadable += 1
        if not messages:
            raise InputError(
                "no network send is marked",
                blob.path,
                "the run's NCCL wrote no ncclNetIsend marks",
                "run with an NCCL that does, or record Kineto traces instead",
            )
        recordings = recordings_of(messages, blob.path, self.name)
        if recordings:
            recordings[0].losses.add("marks that cannot be read", blob.path, unreadable)
        return recordings


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
