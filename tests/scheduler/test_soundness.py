"""Random workloads through every scheduler; `benchmarks/random_workloads.py` takes a thousand."""

from __future__ import annotations

import pytest

from tests.scheduler.soundness import SCHEDULERS, TUNED, judge, workload


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_wrong(seed: int) -> None:
    graph, fabric = workload(seed)
    chosen = [name for k, name in enumerate(SCHEDULERS) if (k + seed) % 4 == 0]
    chosen.append(TUNED[seed % len(TUNED)])
    found = {name: judge(name, graph, fabric) for name in chosen}
    assert {name: verdict.complaints for name, verdict in found.items()} == {
        name: [] for name in chosen
    }
    assert any(verdict.replayed for verdict in found.values())
