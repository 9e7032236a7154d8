"""What a fault does when: the questions the engine asks of its `faults`, and what each has cost.

Rows are in order of their beginning. Random numbers are those of Park and Miller's generator
(Communications of the ACM 31, 1988; multiplier 48271), a stream per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_crossbar import darken_input, darken_output, light
from testbed.emulator._kernels_engine_columns import (
    COMMANDS,
    EXPONENTIAL,
    F_AGAIN,
    F_DOOMED,
    F_FAR,
    F_LENGTH,
    F_PORT,
    F_SERIAL,
    F_TRANSFER,
    FIXED,
    IN_FLIGHT_AGAIN,
    LOCKS,
    N_ZERO,
    NEVER,
    NONE,
    OUTAGE,
    PAUSE,
    Q_AT,
    Q_BATCH,
    Q_DARK,
    Q_DELAY,
    Q_DELAY_MOST,
    Q_DELAYED,
    Q_DIST,
    Q_DRAWN,
    Q_KIND,
    Q_LOST,
    Q_LOST_BYTES,
    Q_NODE,
    Q_PLANE,
    Q_PORT,
    Q_RESENT,
    Q_SEED,
    Q_UNTIL,
    Q_VALUE,
    SEEN_DARK,
    SLOW,
    SPOIL,
    T_DARK,
    Engine,
)

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s
    from testbed.emulator.crossbar import CrossbarTables

__all__ = [
    "command_dark_ns",
    "computed_by",
    "doom",
    "flag_path",
    "held_until",
    "light_around",
    "lock_late_ns",
    "next_again",
    "passes",
    "rate_at",
    "spoilt",
    "survived",
]

MODULUS: Final = (1 << 31) - 1
MULTIPLIER: Final = 48271
CUT: Final = 10  # an exponential is cut off at so many times its mean


@lean_kernel
def draw(row: Int64s) -> float:
    """Return the next random number of a row, above 0 and below 1."""
    row[Q_SEED] = row[Q_SEED] * MULTIPLIER % MODULUS
    return float(row[Q_SEED] / MODULUS)


@lean_kernel
def draw_delay(row: Int64s) -> int:
    """Return a random delay with the row's mean and distribution, ns."""
    mean_ns = row[Q_VALUE]
    if row[Q_DIST] == FIXED:
        return int(mean_ns)
    number = draw(row)
    if row[Q_DIST] == EXPONENTIAL:
        return int(min(-np.log(number), float(CUT)) * mean_ns)
    return int(2.0 * number * mean_ns)


@lean_kernel
def count_delay(row: Int64s, delay_ns: int) -> None:
    """Note that a row delayed something."""
    if delay_ns > 0:
        row[Q_DELAYED] += 1
        row[Q_DELAY] += delay_ns
        row[Q_DELAY_MOST] = max(row[Q_DELAY_MOST], delay_ns)


@lean_kernel
def concerns(row: Int64s, kind: int, plane: int, port: int) -> bool:
    """Say whether a row is of `kind` and about `port` of `plane`."""
    if row[Q_KIND] != kind or row[Q_PLANE] not in (NONE, plane):
        return False
    return bool(row[Q_PORT] in (NONE, port))


# --- hosts and links


@lean_kernel
def rate_at(engine: Engine, plane: int, rate_bps: int, time_ns: int) -> int:
    """Return the rate of a frame that begins at `time_ns`, of a plane that has `rate_bps`."""
    for k in range(len(engine.faults)):
        row = engine.faults[k]
        if row[Q_AT] <= time_ns < row[Q_UNTIL] and concerns(row, SLOW, plane, NONE):
            rate_bps = min(rate_bps, row[Q_VALUE])
    return int(rate_bps)


@lean_kernel
def held_until(engine: Engine, node: int, time_ns: int) -> int:
    """Return when a host that is to do something at `time_ns` can."""
    for k in range(len(engine.faults)):
        row = engine.faults[k]
        mine = row[Q_KIND] == PAUSE and row[Q_NODE] == node
        if mine and row[Q_AT] <= time_ns < row[Q_UNTIL]:
            count_delay(row, row[Q_UNTIL] - time_ns)
            time_ns = row[Q_UNTIL]
    return int(time_ns)


@lean_kernel
def computed_by(engine: Engine, node: int, start_ns: int, duration_ns: int) -> int:
    """Return when a computation begun at `start_ns` has had its time outside every pause."""
    end_ns = start_ns + duration_ns
    for k in range(len(engine.faults)):
        row = engine.faults[k]
        if row[Q_KIND] != PAUSE or row[Q_NODE] != node:
            continue
        if row[Q_UNTIL] > start_ns and row[Q_AT] < end_ns:
            lost_ns = row[Q_UNTIL] - max(row[Q_AT], start_ns)
            count_delay(row, lost_ns)
            end_ns += lost_ns
    return int(end_ns)


# --- circuits


@lean_kernel
def command_dark_ns(
    engine: Engine, plane: int, batch_ns: int, request_ns: int, control_ns: int
) -> int:
    """Return when a command requested at `request_ns` darkens its ports.

    Commands of one batch (asked for at the same time) travel together, and none overtakes another.
    """
    dark_ns = request_ns + control_ns
    for k in range(len(engine.faults)):
        row = engine.faults[k]
        if row[Q_KIND] != COMMANDS or row[Q_PLANE] != plane:
            continue
        if row[Q_BATCH] != batch_ns:
            row[Q_BATCH] = batch_ns
            active = row[Q_AT] <= request_ns < row[Q_UNTIL]
            row[Q_DRAWN] = draw_delay(row) if active else 0
        late_ns = max(row[Q_DRAWN], row[Q_DARK] - dark_ns)
        count_delay(row, late_ns)
        dark_ns += max(late_ns, 0)
        row[Q_DARK] = dark_ns
    return int(dark_ns)


@lean_kernel
def lock_late_ns(engine: Engine, plane: int, far: int, dark_ns: int) -> int:
    """Return how much longer than the delay the receiver at `far` takes to lock this time."""
    late_ns = 0
    for k in range(len(engine.faults)):
        row = engine.faults[k]
        if row[Q_AT] <= dark_ns < row[Q_UNTIL] and concerns(row, LOCKS, plane, far):
            drawn_ns = draw_delay(row)
            count_delay(row, drawn_ns)
            late_ns += drawn_ns
    return int(late_ns)


@lean_kernel
def outage_of(engine: Engine, plane: int, port: int, far: int, time_ns: int) -> int:
    """Return the row that keeps the light from `port` to `far` off at `time_ns`, or NONE."""
    for k in range(len(engine.faults)):
        row = engine.faults[k]
        if row[Q_AT] <= time_ns < row[Q_UNTIL] and (
            concerns(row, OUTAGE, plane, port) or concerns(row, OUTAGE, plane, far)
        ):
            return k
    return NONE


@lean_kernel
def clear_from(engine: Engine, plane: int, port: int, far: int, time_ns: int) -> int:
    """Return when, from `time_ns` on, no outage keeps the light off; NEVER where it stays."""
    outage = outage_of(engine, plane, port, far, time_ns)
    while outage != NONE and time_ns != NEVER:
        time_ns = engine.faults[outage, Q_UNTIL]
        outage = outage_of(engine, plane, port, far, time_ns)
    return int(time_ns)


@lean_kernel
def passes(engine: Engine, plane: int, port: int, far: int, time_ns: int) -> bool:
    """Say whether an outage keeps the light off at `time_ns` that is over one day."""
    outage = outage_of(engine, plane, port, far, time_ns) != NONE
    return bool(outage and clear_from(engine, plane, port, far, time_ns) != NEVER)


@lean_kernel
def light_around(
    engine: Engine, tables: CrossbarTables, plane: int, port: int, far: int, up_ns: int
) -> None:
    """Light `port` to `far` from `up_ns` on, but for the outage then and the next one after it."""
    zero_ns = engine.numbers[N_ZERO]
    up_ns = clear_from(engine, plane, port, far, up_ns)
    if up_ns == NEVER:
        return
    light(tables, port, far, zero_ns + up_ns)
    for k in range(len(engine.faults)):
        row = engine.faults[k]
        if row[Q_AT] > up_ns and (
            concerns(row, OUTAGE, plane, port) or concerns(row, OUTAGE, plane, far)
        ):
            darken_output(tables, port, zero_ns + row[Q_AT])
            darken_input(tables, far, zero_ns + row[Q_AT])
            again_ns = clear_from(engine, plane, port, far, row[Q_UNTIL])
            if again_ns != NEVER:
                light(tables, port, far, zero_ns + again_ns)
            return


# --- frames


@lean_kernel
def doom(engine: Engine, plane: int, frame: Int64s, now_ns: int) -> None:
    """Note which row a frame sent now falls victim to, if to any."""
    port = frame[F_PORT]
    outage = outage_of(engine, plane, port, frame[F_FAR], now_ns)
    frame[F_DOOMED] = outage
    if outage != NONE:
        count_loss(engine, frame, 1)
        return
    for k in range(len(engine.faults)):
        row = engine.faults[k]
        if (
            row[Q_AT] <= now_ns < row[Q_UNTIL]
            and concerns(row, SPOIL, plane, port)
            and draw(row) * MODULUS < row[Q_VALUE]
        ):
            frame[F_DOOMED] = k
            count_loss(engine, frame, 1)
            return


@lean_kernel
def count_loss(engine: Engine, frame: Int64s, frames: int) -> None:
    """Add `frames` to what the row that dooms a frame has cost."""
    row = engine.faults[frame[F_DOOMED]]
    row[Q_LOST] += frames
    row[Q_LOST_BYTES] += frames * frame[F_LENGTH]


@lean_kernel
def spoilt(engine: Engine, frame: Int64s) -> bool:
    """Say whether a frame that arrived is to be thrown away as spoilt."""
    doomed = frame[F_DOOMED]
    return bool(doomed != NONE and engine.faults[doomed, Q_KIND] == SPOIL)


@lean_kernel
def survived(engine: Engine, frame: Int64s) -> None:
    """Note that a frame has arrived, though it was sent at the edge of an outage."""
    if frame[F_DOOMED] != NONE:
        count_loss(engine, frame, -1)
        frame[F_DOOMED] = NONE


@lean_kernel
def flag_path(engine: Engine, port: int, far: int, dark: int) -> None:
    """Flag all that is in flight from `port` to `far` to be sent again.

    Go-back-N: what is behind a lost frame is thrown away by the receiver, whether it arrived or
    not. The row that cost the first of them is charged with all. `dark` is how many frames of the
    port the crossbar has dropped in the dark, to be told of the transfers.
    """
    line = engine.ports[port]
    flagged, first, cause = 0, NEVER, NONE
    for row in range(len(engine.flying)):
        frame = engine.flying[row]
        if frame[F_SERIAL] == NONE or frame[F_PORT] != port or frame[F_FAR] != far:
            continue
        if frame[F_SERIAL] < first:
            first, cause = frame[F_SERIAL], frame[F_DOOMED]
        if frame[F_AGAIN] == 0:
            frame[F_AGAIN] = 1
            flagged += 1
            if line[SEEN_DARK] < dark:
                line[SEEN_DARK] += 1
                engine.transfers[frame[F_TRANSFER], T_DARK] += 1
    line[IN_FLIGHT_AGAIN] += flagged
    if cause != NONE:
        engine.faults[cause, Q_RESENT] += flagged


@lean_kernel
def next_again(engine: Engine, port: int, far: int) -> int:
    """Return the flagged frame to be sent first from `port` to `far`, a row of `flying`, or NONE.

    NONE as `far` means anywhere.
    """
    found = NONE
    for row in range(len(engine.flying)):
        frame = engine.flying[row]
        if frame[F_SERIAL] == NONE or frame[F_AGAIN] == 0 or frame[F_PORT] != port:
            continue
        if far not in (NONE, frame[F_FAR]):
            continue
        if found == NONE or frame[F_SERIAL] < engine.flying[found, F_SERIAL]:
            found = row
    return found
