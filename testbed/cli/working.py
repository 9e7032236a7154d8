"""Work that takes a while: what is done is said on a terminal, and Ctrl-C is heard meanwhile."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.live import Live

__all__ = ["abandoned", "aside", "doing", "progress_line"]

T = TypeVar("T")

_lines: Final[list[Live]] = []  # that move already
_at_work: Final[set[Future[Any]]] = set()


def aside(what: str, work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises; meanwhile say `what`, as `doing` does.

    `work` has a thread of its own. In the main thread Ctrl-C would wait until compiled code
    returns, and be lost where it comes within one of Numba's callbacks. Interrupted, the thread is
    left alone, so `work` must not write anything: see `abandoned`.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="work")
    future = executor.submit(work)
    _at_work.add(future)
    future.add_done_callback(_at_work.discard)
    try:
        with doing(what):
            return future.result()
    finally:
        executor.shutdown(wait=False)
        if future.done():  # what it calls back may come a moment after its result
            _at_work.discard(future)


def abandoned() -> bool:
    """Say whether work goes on that nobody waits for: then the process has to end at once."""
    return bool(_at_work)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is being done and for how long, in one moving line, until the block ends.

    Off a terminal nothing is said.
    """
    if _lines or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    began_s = time.monotonic()

    def line() -> Text:
        spent = f"{time.monotonic() - began_s:.0f} s"
        return Text(f"{what}, {spent}", no_wrap=True, overflow="ellipsis", style="dim")

    with Live(
        get_renderable=line,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        refresh_per_second=4,
    ):
        yield


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the present state: one moving line, or nothing off a terminal.

    While it does, `doing` says nothing.
    """
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), console=Console(stderr=True), transient=True, refresh_per_second=5) as live:
        _lines.append(live)
        try:
            yield lambda text: live.update(Text(text, no_wrap=True, overflow="ellipsis"))
        finally:
            _lines.remove(live)
