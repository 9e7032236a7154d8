"""The base class of list schedulers: sound programs on any fabric, and what a subclass decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.bounds import lower_bound_ns
from scheduler.check import check_plan
from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.policies.listing import Choice, ListPlanner
from tests.scheduler.instances import Builder, random_dag, random_fabric, training
from topologies import Fabric, Plane, UsageError, rails

if TYPE_CHECKING:
    import numpy as np

    from scheduler.model.taskgraph import Int64s


class First(ListPlanner):
    """The earliest start, whatever it costs."""

    name = "first"


class Large(First):
    """Of those ready together, the large ones first."""

    def urgency(self, problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return problem.graph.size_bytes


class Last(First):
    """Only the last of the choices."""

    def choose(self, choices: list[Choice]) -> Choice:
        return choices[-1]


@given(seed=st.integers(0, 10**6), plain=st.booleans(), cls=st.sampled_from([First, Large, Last]))
@settings(max_examples=30, deadline=None)
def test_programs_are_sound_everywhere(seed: int, plain: bool, cls: type[First]) -> None:  # noqa: FBT001 (drawn)
    for graph in (training(seed), random_dag(seed)):
        fabric = random_fabric(seed, graph.nodes, plain=plain)
        program = cls().plan(Problem(graph=graph, fabric=fabric))
        assert check_plan(program, graph, fabric) == []
        ends = simulate(graph, fabric, program, iterations=6).iteration_ends_ns
        assert ends[-1] >= 5 * lower_bound_ns(graph, fabric).value_ns - 1


def test_a_subclass_decides_what_comes_first_and_where() -> None:
    build = Builder(3)
    small, large = build.message(0, 1, 1_000, 0), build.message(0, 2, 9_000, 1)
    graph, fabric = build.graph(), rails(nodes=3, planes=2, delay_ns=1_000)
    problem = Problem(graph=graph, fabric=fabric)

    def entries(cls: type[First]) -> list[list[tuple[int, ...]]]:
        program = cls().plan(problem)
        return [[entry.messages for entry in program.entries(k)] for k in range(2)]

    assert entries(First) == [[(small,)], [(large,)]]
    assert entries(Large) == [[(large,)], [(small,)]]
    assert entries(Last) == [[], [(small,), (large,)]]


def test_a_message_without_a_way_is_named() -> None:
    build = Builder(4)
    build.message(0, 3, 100, 0)
    planes = tuple(Plane(node_of=ports, rate_bps=10**9) for ports in ((0, 1), (2, 3)))
    with pytest.raises(UsageError) as refused:
        First().plan(Problem(graph=build.graph(), fabric=Fabric(nodes=4, planes=planes)))
    assert str(refused.value) == (
        "first: message 0 from node 0 to node 3 has no way, because no plane has a port of both: "
        "use a topology that joins them"
    )


class Stranger(ListPlanner):
    """Returns what is no choice."""

    name = "stranger"

    def choose(self, choices: list[Choice]) -> Choice:
        return choices[0]._replace(src_port=99)


def test_what_is_no_choice_is_refused() -> None:
    build = Builder(2)
    build.message(0, 1, 100, 0)
    with pytest.raises(UsageError) as refused:
        Stranger().plan(Problem(graph=build.graph(), fabric=rails(nodes=2)))
    assert str(refused.value).startswith("stranger: choose returned Choice(")
    assert str(refused.value).endswith(
        ", because it must be one of the choices given: return an element of its argument"
    )


class Shy(ListPlanner):
    """Says for one task only how urgent it is."""

    name = "shy"

    def urgency(self, problem: Problem) -> Int64s:
        return problem.graph.dur_ns[:1]


def test_an_urgency_that_is_not_one_per_task_is_refused() -> None:
    build = Builder(2)
    build.message(0, 1, 100, 0)
    build.compute(0, 10)
    graph = build.graph()
    with pytest.raises(UsageError) as refused:
        Shy().plan(Problem(graph=graph, fabric=rails(nodes=2)))
    assert str(refused.value) == (
        "shy: urgency returned int64 of shape (1,), because it must be numbers of shape "
        f"({graph.tasks},), one per task: return an array like np.zeros(tasks)"
    )
