"""Pipelines: the published bubbles, and steps that expand and end for any grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.expansion import expand, traffic_matrix
from scheduler.model.workload import Collective, Compute
from testbed.files.workload import decode_workload, encode_workload
from testbed.synth import synth
from testbed.synth.models import find_model
from testbed.synth.recipe import Recipe
from testbed.synth.schedules import passes_of
from topologies import InputError, UsageError, rails

TOY = {"layers": 8, "hidden": 512, "ffn": 2048, "heads": 8, "vocab": 1000}
MIX = {**TOY, "experts": 8, "experts_per_token": 2, "dense_layers": 1, "shared_experts": 1}


def longest_ns(workload: Any) -> int:
    """When the step is done if bytes take no time."""
    graph = expand(workload, rails(nodes=max(2, workload.world))).graph
    pointers, listed, _ = graph.successors(1)
    end = np.zeros(graph.tasks, np.int64)
    for task in graph.topological_order():
        end[task] += graph.dur_ns[task]
        for after in listed[pointers[task] : pointers[task + 1]]:
            end[after] = max(end[after], end[task])
    return int(end.max())


def toy(**options: Any) -> Any:
    base = {"seq": 4096, "mfu": 0.01, "embeddings": "omitted", "optimizer": False, "causal": False}
    return synth(TOY, **{**base, **options})


def work_ns(workload: Any) -> int:
    return sum(op.dur_ns for op in workload.operations if isinstance(op, Compute) and op.rank == 0)


@pytest.mark.parametrize(("pp", "batches"), [(2, 2), (4, 4), (4, 12), (8, 16)])
def test_the_bubble_of_1f1b(pp: int, batches: int) -> None:
    """(p-1)/m of the work (2104.04473, section 2.2.1)."""
    workload = toy(pp=pp, micro_batches=batches)
    assert longest_ns(workload) / work_ns(workload) == pytest.approx(
        1 + (pp - 1) / batches, rel=1e-6
    )


@pytest.mark.parametrize(("pp", "batches", "chunks"), [(2, 4, 2), (2, 4, 4), (4, 8, 2)])
def test_the_bubble_of_interleaving(pp: int, batches: int, chunks: int) -> None:
    """(p-1)/(v m) of the work (2104.04473, section 2.2.2)."""
    workload = toy(pp=pp, micro_batches=batches, schedule="interleaved", virtual_stages=chunks)
    bubble = (pp - 1) / (chunks * batches)
    assert longest_ns(workload) / work_ns(workload) == pytest.approx(1 + bubble, rel=1e-6)


@pytest.mark.parametrize(("pp", "batches"), [(2, 4), (4, 8), (4, 12)])
def test_the_bubble_of_zb_h1(pp: int, batches: int) -> None:
    """(p-1)(F + B - W) (2401.10241, table 2)."""
    one = toy(micro_batches=1)
    forward = longest_ns_of_phase(one)
    weights = forward["weights"] / pp
    work = work_ns(toy(pp=pp, micro_batches=batches, schedule="zero-bubble"))
    each = forward["all"] / pp
    bubble = (pp - 1) * (each - 2 * weights)  # F + B + W - 2 W
    measured = longest_ns(toy(pp=pp, micro_batches=batches, schedule="zero-bubble"))
    assert measured == pytest.approx(work + bubble, rel=1e-6)


def longest_ns_of_phase(workload: Any) -> dict[str, float]:
    """All work of one micro-batch, and its weight gradients: the matrices once."""
    model = find_model(TOY)
    matrices = 8 * (model.attention_weights + model.ffn_weights) * 2 * 4096 / (312e12 * 0.01) * 1e9
    return {"all": work_ns(workload), "weights": matrices}


@given(
    stages=st.integers(1, 8), groups=st.integers(1, 4), chunks=st.integers(1, 3),
    name=st.sampled_from(["1f1b", "interleaved", "zero-bubble"]),
)  # fmt: skip
def test_every_pass_happens_once_and_memory_is_bounded(
    stages: int, groups: int, chunks: int, name: str
) -> None:
    if name == "interleaved":
        stages, chunks, batches = max(stages, 2), chunks + 1, groups * max(stages, 2)
    else:
        chunks, batches = 1, groups
    for stage, passes in enumerate(passes_of(name, stages, batches, chunks)):
        everything = {(j, c) for j in range(batches) for c in range(chunks)}
        for phase in ("F", "B", "W")[: 3 if name == "zero-bubble" else 2]:
            done = [(p.micro_batch, p.chunk) for p in passes if p.phase == phase]
            assert len(done) == len(everything)
            assert set(done) == everything
        held = most = 0
        for step in passes:
            last = "W" if name == "zero-bubble" else "B"
            held += (step.phase == "F") - (step.phase == last)
            most = max(most, held)
        if name == "1f1b":
            assert most <= stages - stage
        elif name == "zero-bubble":
            assert most <= stages


GRIDS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2]),
        "cp": st.sampled_from([1, 2]),
        "dp": st.sampled_from([1, 2, 3]),
        "pp": st.sampled_from([1, 2, 4]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "embeddings": st.sampled_from(["tied", "sharded", "replicated", "omitted"]),
        "schedule": st.sampled_from(["1f1b", "zero-bubble"]),
        "overlap": st.booleans(),
        "bucket_bytes": st.sampled_from([None, 10**6, 10**9]),
        "sequence_parallel": st.booleans(),
    }
)


@settings(max_examples=40, deadline=None)
@given(grid=GRIDS, mixture=st.booleans(), skew=st.sampled_from([0.0, 0.7]))
def test_any_grid_is_a_sound_workload(grid: dict[str, Any], mixture: bool, skew: float) -> None:  # noqa: FBT001 (drawn)
    options = dict(grid)
    if mixture:
        options["ep"] = 2 if grid["tp"] * grid["cp"] * grid["dp"] % 2 == 0 else 1
        options["sequence_parallel"] = True
        options["expert_skew"] = skew
    workload = synth(MIX if mixture else TOY, layers=4, seq=64, micro_batches=4, **options)
    text = b"".join(encode_workload(workload))
    assert decode_workload(text.splitlines(keepends=True), "made") == workload
    longest_ns(workload)
    seen = set()
    for index, op in enumerate(workload.operations):
        parts = [op] if isinstance(op, Compute) else op.ranks.values()
        assert all(dep < index for part in parts for dep in part.deps)
        seen |= {op.rank} if isinstance(op, Compute) else set(op.ranks)
    assert seen == set(range(workload.world))


def test_skewed_experts_conserve_tokens_and_are_drawn_by_seed() -> None:
    def rows(**options: Any) -> list[Any]:
        workload = synth(MIX, ep=4, dp=4, layers=3, seq=256, **options)
        return [op.splits for op in workload.operations if isinstance(op, Collective) and op.splits]

    even, skewed = rows(), rows(expert_skew=1.0)
    assert len(even) == len(skewed) == 4 * 2
    for flat, drawn in zip(even, skewed, strict=True):
        assert sum(map(sum, flat.values())) == sum(map(sum, drawn.values()))
    assert max(map(max, (s.values() for s in skewed))) > max(map(max, (s.values() for s in even)))
    dispatch, combine = skewed[0], skewed[1]
    assert all(dispatch[i][j] == combine[j][i] for i in range(4) for j in range(4))
    assert rows(expert_skew=1.0) == skewed
    assert rows(expert_skew=1.0, seed=1) != skewed


def test_ranks_are_placed_tensor_first_then_data_then_pipeline() -> None:
    workload = synth(TOY, tp=2, dp=2, pp=2, layers=2, seq=64)
    groups = {name: group.ranks for name, group in workload.groups.items()}
    assert groups["tp0"] == (0, 1)
    assert {ranks for name, ranks in groups.items() if name.startswith("dp")} == {
        (0, 2), (1, 3), (4, 6), (5, 7),
    }  # fmt: skip
    assert {ranks for name, ranks in groups.items() if name.startswith("pp")} == {
        (i, i + 4) for i in range(4)
    }
    matrix = traffic_matrix(expand(workload, rails(nodes=8)).graph)
    assert {tuple(sorted(pair)) for pair in np.argwhere(matrix).tolist()} == {
        *((i, i + 1) for i in (0, 2, 4, 6)),
        *((i, i + 2) for i in (0, 1, 4, 5)),
        *((i, i + 4) for i in range(4)),
    }


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("llama4", {}, "synth: there is no model 'llama4', because the models are llama3-8b, "),
        (TOY, {"tp": 3}, "synth: tp is 3, because it must divide the model's heads, 8: correct tp"),
        (TOY, {"tp": 0}, "synth: tp is 0, because the least possible is 1: correct tp"),
        (TOY, {"ep": 2}, "synth: ep is 2, because model has no experts: correct ep"),
        (MIX, {"ep": 3, "dp": 3}, "synth: ep is 3, because it must divide 8 experts: correct ep"),
        (TOY, {"pp": 9}, "synth: layers is None, because each of 9 stages needs one"),
        (TOY, {"cp": 3}, "synth: cp is 3, because it must divide seq, 8192: correct cp"),
        (TOY, {"zero": 4}, "synth: zero is 4, because it must be one of 0, 1, 2, 3: correct zero"),
        (TOY, {"gpu": "V100"}, "synth: there is no GPU 'V100', because the GPUs are A100, "),
        (TOY, {"mfu": 1.5}, "synth: mfu is 1.5, because it is the share of the peak that is used"),
        (TOY, {"schedule": "gpipe"}, "synth: there is no schedule 'gpipe', because the schedules"),
        (
            TOY,
            {"pp": 2, "micro_batches": 3, "schedule": "interleaved", "virtual_stages": 2},
            "interleaved: 3 micro-batches of 2 chunks go through 2 stages, because",
        ),
        (
            MIX,
            {"tp": 2, "sequence_parallel": False},
            "synth: sequence_parallel is False, because experts need it together with tensor",
        ),
        ({**TOY, "depth": 3}, {}, "model: there is no dimension 'depth', because a model has name"),
        ({**TOY, "layers": "8"}, {}, "model: layers is '8', because it is of type int"),
        ({"layers": 8}, {}, "model: hidden is missing, because a model needs layers, hidden, "),
        ({**TOY, "heads": 7}, {}, "model model: heads is 7, because it must divide hidden"),
        ({**TOY, "layers": 0}, {}, "model model: layers is 0, because the least possible is 1"),
    ],
)
def test_bad_recipes(model: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        synth(model, **options)
    assert str(refusal.value).startswith(sentence)


def test_a_model_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "toy.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in TOY.items()))
    assert synth(str(path), layers=1).operations == synth(TOY, layers=1).operations
    path.write_text("layers = [")
    with pytest.raises(InputError, match="this is not TOML, because"):
        synth(str(path))
    with pytest.raises(InputError, match="the file cannot be read, because no such file"):
        synth(str(tmp_path / "absent.toml"))


def test_recipe_defaults() -> None:
    recipe = Recipe(model=find_model("llama3-8b"), tp=2, pp=4)
    assert (recipe.world, recipe.depth, recipe.batches) == (8, 32, 8)
    assert [len(recipe.layers_of(s)) for s in range(4)] == [8, 8, 8, 8]
