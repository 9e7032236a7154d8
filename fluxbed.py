"""fluxbed: an emulation testbed for optical circuit switching in LLM training.

This one file is the whole public API; `fluxbed.NAME` imports what it needs when it is first used.
Run it as `fluxbed` or `python -m fluxbed`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Final

__version__ = "0.1.0"

_HERE: Final = Path(__file__).resolve().parent
_ROOMS: Final = ("topologies", "scheduler", "testbed")

_API: Final = {
    "Circuit": "topologies",
    "Fabric": "topologies",
    "FabricError": "topologies",
    "FluxbedError": "topologies",
    "InputError": "topologies",
    "Plane": "topologies",
    "UsageError": "topologies",
    "build_fabric": "topologies",
    "rails": "topologies",
    "Collective": "scheduler.model.workload",
    "Compute": "scheduler.model.workload",
    "Workload": "scheduler.model.workload",
    "Entry": "scheduler.model.program",
    "OrderedProgram": "scheduler.model.program",
    "ReactiveProgram": "scheduler.model.program",
    "Slot": "scheduler.model.program",
    "TimedProgram": "scheduler.model.program",
    "Problem": "scheduler.model.problem",
    "Int64s": "scheduler.model.taskgraph",
    "TaskGraph": "scheduler.model.taskgraph",
    "Timeline": "scheduler.model.timeline",
    "expand": "scheduler.model.expansion",
    "Choice": "scheduler.policies.listing",
    "ListPlanner": "scheduler.policies.listing",
    "Planner": "scheduler.policies.base",
    "Reactive": "scheduler.policies.base",
    "kernel": "scheduler.kernel",
    "Blob": "testbed.traces.sources",
    "Busy": "testbed.traces.capture",
    "Call": "testbed.traces.capture",
    "Enter": "testbed.traces.capture",
    "Group": "scheduler.model.workload",
    "Recording": "testbed.traces.capture",
    "Step": "testbed.traces.capture",
    "Work": "testbed.traces.capture",
    "load_workload": "testbed.traces",
    "simulate": "scheduler.dispatch.simulator",
}

__all__ = ["__version__", "main", *_API]  # noqa: PLE0604 (the names are strings, spread in)


def _is_ours(room: str, origin: str) -> bool:
    """Tell whether `origin` lies beside this file and still says that it is fluxbed's.

    A package of the same name may have been installed over ours, at the same path.
    """
    if Path(origin).resolve() != _HERE / room / "__init__.py":
        return False
    return Path(origin).read_bytes().startswith(b'"""fluxbed: ')


def _verify_identity() -> None:
    """Exit 4 naming the intruder when one of our package names leads to somebody else's code.

    `scheduler` and `topologies` are also names on the package index and of users' own files.
    """
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        if spec is not None and spec.origin is not None and _is_ours(room, spec.origin):
            continue
        found = (spec.origin or str(list(spec.submodule_search_locations or []))) if spec else None
        what = f"the package {room!r} is {'not ours but ' + found if found else 'missing'}"
        fix = (
            f"rename or uninstall {found}, then install fluxbed again"
            if found
            else ("install fluxbed again")
        )
        why = f"fluxbed needs its own at {_HERE / room}"
        sys.stderr.write(f"fluxbed: {what}, because {why}: {fix}\n")
        raise SystemExit(4)


_verify_identity()


def __getattr__(name: str) -> object:
    if name not in _API:
        message = f"module 'fluxbed' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(_API[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})


def main() -> None:
    """Run the command line."""
    from testbed.cli import main as run

    run()


if __name__ == "__main__":
    main()
