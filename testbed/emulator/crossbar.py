"""The crossbar: which input is joined to which output, when, as memory the kernel reads.

Each OCS port has two rows of `DEPTH` entries {t_ns, value} on CLOCK_MONOTONIC, and of each row the
newest entry whose time has come holds:

- its row in `table` says where frames that enter by it leave (an interface number of the switch,
  0: dark);
- its row in `owner` says whose frames may leave by it (the input port + 1, 0: dark).

A table per input is a function, not a matching; the second row makes it one. A frame is forwarded
if its port's entry names an output whose owner is that port, both at the same reading of the
clock, so a circuit written ahead of time into both rows comes to life in both at once. Otherwise
the frame is dropped and counted:

- unconnected: no entry of the input has come yet;
- dark: the input or the output is dark;
- conflict: the output belongs to another input, to none yet, or is no port of this switch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from testbed.emulator.bpf import MappedArray, load_classifier
from testbed.emulator.crossbar_program import (
    COUNTER_BYTES,
    DEPTH,
    HIGHEST_IFINDEX,
    ROW_BYTES,
    MapPlaces,
    crossbar_program,
)
from testbed.emulator.netns import in_netns
from topologies import FluxbedError, MachineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from numpy.typing import NDArray

__all__ = ["CAUSES", "COUNTERS", "DEPTH", "NEVER", "Crossbar", "CrossbarTables"]

NEVER: Final = (1 << 63) - 1
"""The time of an entry that is not in use."""
CAUSES: Final = ("forwarded", "dark", "unconnected", "conflict")
"""What can happen to a frame that enters a port; all but the first are drops."""
COUNTERS: Final = tuple(f"{cause}_{what}" for cause in CAUSES for what in ("frames", "bytes"))
"""The columns of `Crossbar.counters`; bytes are those of whole Ethernet frames."""


class CrossbarTables(NamedTuple):
    """What the writers in `_kernels_crossbar` need: memory of the kernel, never copied.

    `table` and `owner` int64[ports, 2 * DEPTH] are entries (t_ns, value) as told above; `ifindex`
    int64[ports] is each port's interface number in its switch.
    """

    table: NDArray[np.int64]
    owner: NDArray[np.int64]
    ifindex: NDArray[np.int64]


class Crossbar:
    """The ports of one or more switches, numbered through; plane k's port p is base[k] + p.

    `tables` is for compiled writers; the methods write the same way. `counters`
    int64[ports, 8] has the columns `COUNTERS`, counted by the kernel while anyone looks.
    Raises `MachineError` where the kernel refuses, `OSError` without the right to ask.
    """

    def __init__(self, ports: int, switches: int = 1) -> None:
        self.ports = ports
        self._switches = switches
        self._attached = 0
        self._maps = contextlib.ExitStack()
        with contextlib.ExitStack() as building:
            self._rows = self._map(building, 2 * ports * ROW_BYTES, "fluxbed_rows")
            self._counted = self._map(building, ports * COUNTER_BYTES, "fluxbed_count")
            numbers = switches * (HIGHEST_IFINDEX + 1)
            self._port_of = self._map(building, 4 * numbers, "fluxbed_port_of")
            self._maps = building.pop_all()
        rows = np.frombuffer(self._rows.memory, np.int64, 2 * ports * 2 * DEPTH)
        table, owner = rows.reshape(2, ports, 2 * DEPTH)
        self.tables = CrossbarTables(table, owner, np.zeros(ports, np.int64))
        self.counters: NDArray[np.int64] = np.frombuffer(
            self._counted.memory, np.int64, ports * len(COUNTERS)
        ).reshape(ports, len(COUNTERS))
        self._numbers: NDArray[np.int32] = np.frombuffer(self._port_of.memory, np.int32, numbers)
        self._numbers[:] = -1
        self.reset()

    @staticmethod
    def _map(building: contextlib.ExitStack, size: int, name: str) -> MappedArray:
        array = MappedArray(size, name)
        building.callback(array.close)
        return array

    @property
    def table(self) -> NDArray[np.int64]:
        """Entries (t_ns, out_ifindex) of every input, int64[ports, 2 * DEPTH]."""
        return self.tables.table

    @property
    def owner(self) -> NDArray[np.int64]:
        """Entries (t_ns, input port + 1) of every output, int64[ports, 2 * DEPTH]."""
        return self.tables.owner

    @property
    def ifindex(self) -> NDArray[np.int64]:
        """Interface number of every port in its switch, int64[ports]."""
        return self.tables.ifindex

    def attach(self, pid: int, interfaces: Mapping[int, str]) -> None:
        """Make `interfaces` (port: name) the ports of the switch in the namespace of `pid`.

        A frame crosses from port to port of one switch only. The programs go with the interfaces.
        """
        from pyroute2 import IPRoute

        switch, self._attached = self._attached, self._attached + 1
        assert switch < self._switches, "more switches than were announced"
        places = MapPlaces(self._rows.fd, self._counted.fd, self._port_of.fd, switch)
        numbers = self._numbers.reshape(self._switches, -1)[switch]
        with in_netns(pid), IPRoute() as kernel:
            for port, name in interfaces.items():
                number = socket.if_nametoindex(name)
                if number > HIGHEST_IFINDEX:
                    why = f"its number {number} is above {HIGHEST_IFINDEX}"
                    fix = "make the switch's links in a fresh namespace"
                    raise FluxbedError("the port cannot be used", name, why, fix)
                self.ifindex[port] = number
                numbers[number] = port
                program = load_classifier(crossbar_program(places, port, self.ports), "fluxbed")
                try:
                    _attach(kernel, number, program)
                finally:
                    os.close(program)

    def set_circuit_at(
        self, src_port: int, dst_port: int, up_ns: int = 0, dark_ns: int | None = None
    ) -> None:
        """Light `src_port`'s output to `dst_port`'s input from `up_ns` on, one way.

        With `dark_ns` both are dark from then until `up_ns`; without, the circuit before stands
        until `up_ns`. What was planned for either port from that time on is cancelled. Times are
        CLOCK_MONOTONIC; `DEPTH` - 2 of a port's entries can lie ahead at once.
        """
        from testbed.emulator import _kernels_crossbar as write

        self._check(src_port, dst_port)
        if dark_ns is not None:
            write.darken_output(self.tables, src_port, dark_ns)
            write.darken_input(self.tables, dst_port, dark_ns)
        write.light(self.tables, src_port, dst_port, up_ns)

    def set_dark_at(self, port: int, at_ns: int = 0) -> None:
        """Darken `port` both ways from `at_ns` on and cancel what was planned for it."""
        from testbed.emulator import _kernels_crossbar as write

        self._check(port)
        write.darken_output(self.tables, port, at_ns)
        write.darken_input(self.tables, port, at_ns)

    def _check(self, *ports: int) -> None:
        now_ns = time.monotonic_ns()
        for port in ports:
            if not 0 <= port < self.ports:
                raise IndexError(f"there is no port {port}: the ports are 0 to {self.ports - 1}")
            for rows in (self.table, self.owner):
                times = rows[port, ::2]
                if np.count_nonzero((times > now_ns) & (times < NEVER)) > DEPTH - 3:
                    what = f"port {port} has {DEPTH - 2} changes ahead of it"
                    fix = "write later changes when earlier ones have come"
                    raise FluxbedError(what, "crossbar", f"a row has {DEPTH} entries", fix)

    def reset(self) -> None:
        """Forget every circuit, past and planned, and set every counter to zero."""
        for rows in (self.table, self.owner):
            rows[:, 0::2] = NEVER
            rows[:, 1::2] = 0
        self.counters[:] = 0

    def totals(self) -> dict[str, int]:
        """Return every counter by its name, summed over the ports."""
        return dict(zip(COUNTERS, self.counters.sum(axis=0).tolist(), strict=True))

    def close(self) -> None:
        """Keep the last counts and tables as copies and let go of the maps.

        The kernel frees them when the switches are gone too.
        """
        self.counters = self.counters.copy()
        self.tables = CrossbarTables(*(array.copy() for array in self.tables))
        self._numbers = self._numbers.copy()
        self._maps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _attach(kernel: Any, number: int, program: int) -> None:  # noqa: ANN401 (pyroute2 is untyped)
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        kernel.tc("add", "clsact", number)
        kernel.tc(
            "add-filter",
            "bpf",
            number,
            ":1",
            fd=program,
            name="fluxbed",
            parent="ffff:fff2",  # clsact's ingress half
            classid=1,
            direct_action=True,
        )
    except NetlinkError as refused:
        why = f"the kernel says {refused}"
        fix = "use a kernel with clsact and cls_bpf (CONFIG_NET_CLS_BPF)"
        raise MachineError("the crossbar cannot be attached", "tc", why, fix) from refused
