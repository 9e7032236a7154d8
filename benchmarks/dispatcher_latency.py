"""How long the dispatcher takes per event, by number of nodes.

Every message of an ordered program is reported as arrived, in the order they were granted; the time
of each call is read inside compiled code from the monotonic clock. Reference of the same run: two
readings of the clock with nothing between. Run it as `python -m benchmarks.dispatcher_latency`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.simulator_throughput import ordered, shifts
from scheduler.dispatch._kernels_columns import EV_ARRIVED, EV_START
from scheduler.dispatch._kernels_dispatch import dispatch
from scheduler.dispatch.layout import new_state, prepare
from topologies import rails


def timed_loop() -> Any:  # noqa: ANN401 (a compiled function)
    """Compile the loop that replays arrivals and notes how long each call took, ns."""
    import ctypes
    import ctypes.util

    import numba

    library = ctypes.CDLL(ctypes.util.find_library("c"))
    clock_gettime = library.clock_gettime
    clock_gettime.argtypes = [ctypes.c_int, ctypes.c_void_p]
    clock_gettime.restype = ctypes.c_int

    @numba.njit(nogil=True)
    def now_ns(reading: Any) -> Any:  # noqa: ANN401 (Numba infers them)
        clock_gettime(1, reading.ctypes.data)
        return reading[0] * 1_000_000_000 + reading[1]

    @numba.njit(nogil=True)
    def run(state: Any, spans: Any, idle: Any) -> Any:  # noqa: ANN401 (Numba infers them)
        reading = np.zeros(2, np.int64)
        dispatch(state, 0, EV_START, 0)
        done = 0
        while done < state.core.cursor[1]:
            message = state.core.granted[done]
            begin = now_ns(reading)
            dispatch(state, done, EV_ARRIVED, message)
            end = now_ns(reading)
            spans[done] = end - begin
            idle[done] = now_ns(reading) - end
            done += 1
        return done

    return run


def main() -> None:
    """Print the table."""
    run = timed_loop()
    print(f"{'nodes':>6}{'events':>9}{'p50 ns':>9}{'p99 ns':>9}{'clock p50':>11}{'ratio':>8}")
    for nodes, rounds in ((8, 4000), (64, 1000), (1024, 100)):
        fabric = rails(nodes=nodes, planes=2)
        graph = shifts(nodes, rounds, 1000)
        layout = prepare(graph, fabric, ordered(graph, fabric), iterations=2)
        count = 2 * len(graph.messages)
        spans, idle = np.zeros(count, np.int64), np.zeros(count, np.int64)
        done = run(new_state(layout), spans, idle)
        if done != count:
            message = f"{count - done} of {count} messages were never granted"
            raise RuntimeError(message)
        p50, p99 = np.percentile(spans, [50, 99])
        base = np.median(idle)
        print(f"{nodes:6}{count:9}{p50:9.0f}{p99:9.0f}{base:11.0f}{p50 / base:8.1f}")


if __name__ == "__main__":
    main()
