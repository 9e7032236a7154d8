"""An execution as it runs: progress, circuits and queues on a terminal, plain lines elsewhere.

It looks five times a second at most, from a thread of its own, and only reads.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from testbed.cli.output import note
from topologies.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from testbed.emulator.dilation import Dilation
    from testbed.emulator.engine import Monitor
    from testbed.emulator.network import EmulatedFabric

__all__ = ["LiveView", "watching"]

_LOOK_S: Final = 0.25
_LINE_S: Final = 10.0  # between lines off a terminal
_BAR: Final = 30
_MOST_HOSTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """What is shown of one execution of `tasks` unrolled tasks."""

    label: str
    tasks: int
    network: EmulatedFabric
    monitor: Monitor
    dilation: Dilation

    def progress(self) -> str:
        """Return tasks done, virtual time and time left, in one line."""
        done, wall_s = self.monitor.tasks_done, self.monitor.wall_ns / 1e9
        virtual = format_duration(self.monitor.wall_ns / self.dilation.factor)
        line = f"{self.label}: {done} of {self.tasks} tasks, {virtual} of virtual time"
        expected_s = self.dilation.expected_wall_s
        return line if expected_s is None else f"{line}, {_left(expected_s - wall_s)}"

    def circuits(self) -> list[str]:
        """Return a line per plane: each port and the one its light reaches now, `-` for none."""
        from testbed.emulator.observe import standing_circuits

        crossbar, base = self.network.crossbar, self.network.port_base
        far = standing_circuits(crossbar.tables, base, time.monotonic_ns()).tolist()
        lines = []
        for plane, switch in enumerate(self.network.fabric.planes):
            first = base[plane]
            pairs = (
                f"{port}>{far[first + port] - first if far[first + port] >= 0 else '-'}"
                for port in range(switch.ports)
            )
            lines.append("packets" if switch.kind == "eps" else "  ".join(pairs))
        return lines

    def queues(self) -> list[tuple[int, int]]:
        """Return the fullest network cards, (node, virtual bytes), by node; none before it runs."""
        from testbed.emulator.observe import queued_bytes

        if self.monitor.tables is None:
            return []
        sizes = queued_bytes(self.monitor.tables, self.network.fabric.nodes).tolist()
        fullest = sorted(enumerate(sizes), key=lambda pair: -pair[1])[:_MOST_HOSTS]
        return sorted(fullest)

    def __rich__(self) -> RenderableType:
        """Return all of it for a terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        done = self.monitor.tasks_done
        grid.add_row("done", ProgressBar(total=self.tasks, completed=done, width=_BAR))
        for plane, line in enumerate(self.circuits()):
            lit = Text(line, no_wrap=True, overflow="ellipsis")
            lit.highlight_regex(r"\d+>-", "yellow")
            grid.add_row(f"plane {plane}", lit)
        queues = self.queues()
        most = max((size for _, size in queues), default=0)
        for node, size in queues:
            full = "━" * round(_BAR * size / most) + " " if size else ""
            grid.add_row(
                f"NIC h{node}", Text(full, style="cyan").append(format_bytes(size), "default")
            )
        return Group(
            Text(self.progress(), style="bold", no_wrap=True, overflow="ellipsis"),
            grid,
            Text("a port > the port its light reaches, - in the dark", style="dim"),
        )


def _left(seconds: float) -> str:
    return f"{seconds:.0f} s left" if seconds >= 1 else "about to end"


@contextlib.contextmanager
def watching(view: LiveView) -> Iterator[None]:
    """Show `view` until the block ends: moving on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        with _each(_LINE_S, lambda: note(view.progress())):
            yield
        return
    from rich.console import Console
    from rich.live import Live

    screen = Console(stderr=True)
    with (
        Live(view, console=screen, transient=True, auto_refresh=False) as live,
        _each(_LOOK_S, live.refresh),
    ):
        yield


@contextlib.contextmanager
def _each(period_s: float, look: Callable[[], None]) -> Iterator[None]:
    """Call `look` every `period_s` from another thread while the block lasts."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(period_s):
            look()

    thread = threading.Thread(target=watch, name="view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
