"""Synthetic steps against published numbers and the formulas they come from."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from scheduler.model.workload import Compute
from testbed.synth import synth
from testbed.synth.gpus import Clock, find_gpu
from testbed.synth.models import PRESETS, Model, find_model

BARE: dict[str, Any] = {"embeddings": "omitted", "optimizer": False}


def sent_by_rank_0(workload: Any) -> dict[str, float]:
    """Bytes rank 0 sends, per kind of group, with algorithms that send as little as can be."""
    sent: dict[str, float] = defaultdict(float)
    for op in workload.operations:
        if isinstance(op, Compute) or 0 not in op.ranks:
            continue
        n, part = len(op.ranks), op.ranks[0]
        desc = workload.groups[op.group].desc
        match op.kind:
            case "all_reduce":
                sent[desc] += 2 * (n - 1) / n * part.in_bytes
            case "reduce_scatter":
                sent[desc] += part.in_bytes - part.out_bytes
            case "all_gather":
                sent[desc] += part.out_bytes - part.in_bytes
            case "all_to_all":
                row = op.splits[0]
                sent[desc] += sum(row) - row[workload.groups[op.group].ranks.index(0)]
            case "send_recv":
                sent[desc] += part.in_bytes or 0
    return dict(sent)


def compute_ns(workload: Any, rank: int = 0) -> int:
    return sum(
        op.dur_ns for op in workload.operations if isinstance(op, Compute) and op.rank == rank
    )


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama3-8b", 8.03, 8.03),
        ("llama3-70b", 70.55, 70.55),
        ("llama3-405b", 405.85, 405.85),
        ("gpt3-175b", 174.6, 174.6),
        ("mixtral-8x7b", 46.70, 12.88),
        ("mixtral-8x22b", 140.6, 39.2),
        ("deepseek-v3", 671.0, 37.6),
    ],
)
def test_parameters(name: str, billions: float, active: float) -> None:
    model = PRESETS[name]
    assert model.weights() / 1e9 == pytest.approx(billions, abs=0.06)
    assert model.weights(active=True) / 1e9 == pytest.approx(active, abs=0.06)


def test_llama_layer_has_218_million() -> None:
    assert PRESETS["llama3-8b"].layer_weights(0) / 1e6 == pytest.approx(218.1, abs=0.05)


def megatron_flop(batch: int, seq: int, layers: int, hidden: int, vocab: int) -> float:
    """F = 96 B s l h^2 (1 + s/6h + V/16lh) (2104.04473, eq. 3)."""
    shape = 1 + seq / (6 * hidden) + vocab / (16 * layers * hidden)
    return 96 * batch * seq * layers * hidden**2 * shape


def test_gpt3_takes_31_5_seconds_on_1024_a100() -> None:
    flop = PRESETS["gpt3-175b"].step_flop(1536 * 2048, 2048, causal=False, recompute=True)
    assert flop == pytest.approx(megatron_flop(1536, 2048, 96, 12_288, 51_200), rel=1e-9)
    assert flop == pytest.approx(4.51e18, rel=1e-3)
    assert flop / (1024 * 140e12) == pytest.approx(31.5, abs=0.05)


def test_a_trillion_parameters_take_102_6_seconds_on_3072_a100() -> None:
    model = Model(
        layers=128, hidden=25_600, ffn=4 * 25_600, heads=160, vocab=51_200, gated=False, tied=True
    )
    assert model.weights() / 1e12 == pytest.approx(1.008, abs=1e-3)
    flop = model.step_flop(3072 * 2048, 2048, causal=False, recompute=True)
    assert flop / (3072 * 163e12) == pytest.approx(102.6, abs=0.05)


def test_llama_405b_takes_6_2_seconds_on_16384_h100() -> None:
    """41 % of 989 TF is 400 TF; 16 M tokens a step; 6 N D (2407.21783, table 4)."""
    tokens = 2048 * 8192
    step = 6 * PRESETS["llama3-405b"].weights() * tokens / (16_384 * 400e12)
    assert step == pytest.approx(6.2, abs=0.05)
    assert find_gpu("H100").peak_flops * 0.41 == pytest.approx(400e12, rel=0.02)
    own = PRESETS["llama3-405b"].step_flop(tokens, 8192) / (16_384 * 400e12)
    assert 1.0 < own / step < 1.1  # attention on top


def test_the_papers_instance() -> None:
    """Llama-3-8B, 8 layers, TP4 x DP2, s=8192: 159 ms at 156 TF, port bound 20.5 ms on 2 ports."""
    workload = synth("llama3-8b", tp=4, dp=2, layers=8, mfu=0.5, regather=False, **BARE)
    assert compute_ns(workload) / 1e6 == pytest.approx(159, abs=0.5)
    sent = sent_by_rank_0(workload)
    assert sent["tp"] / 8 == pytest.approx(403e6, rel=2e-3)
    assert sent["dp"] / 8 == pytest.approx(109e6, rel=2e-3)
    port_ms = sum(sent.values()) / 100e9 / 2 * 1e3
    assert port_ms == pytest.approx(20.5, abs=0.05)
    gather = next(op for op in workload.operations if getattr(op, "kind", "") == "all_gather")
    assert gather.ranks[0].out_bytes == 67_108_864  # the activation, 67.1 MB
    assert gather.ranks[0].in_bytes == 16_777_216  # a ring step, 168 us at 100 GB/s
    assert gather.ranks[0].in_bytes / 100e9 * 1e6 == pytest.approx(168, abs=0.5)


@pytest.mark.parametrize(
    ("options", "collectives"),
    [
        ({"sequence_parallel": False}, {"all_reduce": 4}),
        ({"regather": False}, {"all_gather": 4, "reduce_scatter": 4}),
        ({}, {"all_gather": 6, "reduce_scatter": 4}),
        ({"recompute": "full"}, {"all_gather": 8, "reduce_scatter": 6}),
        ({"sequence_parallel": False, "recompute": "full"}, {"all_reduce": 6}),
        ({"recompute": "selective"}, {"all_gather": 6, "reduce_scatter": 4}),
    ],
)
def test_tensor_parallel_collectives_per_layer(
    options: dict[str, Any], collectives: dict[str, int]
) -> None:
    workload = synth("llama3-8b", tp=4, layers=3, micro_batches=2, mfu=0.5, **BARE, **options)
    counts: dict[str, int] = defaultdict(int)
    for op in workload.operations:
        if not isinstance(op, Compute):
            counts[op.kind] += 1
    assert counts == {kind: 3 * 2 * count for kind, count in collectives.items()}
    activation = 2 * 8192 * 4096
    share = 2 if "all_reduce" in collectives else 1
    expected = 3 * 2 * sum(collectives.values()) * share * 3 / 4 * activation
    assert sent_by_rank_0(workload) == {"tp": expected}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_data_parallel_bytes(zero: int) -> None:
    """2 (d-1)/d a P, and 1.5 times as much for ZeRO-3 (1910.02054, section 7)."""
    workload = synth("llama3-8b", dp=4, layers=2, zero=zero, mfu=0.5, **BARE)
    weights = 2 * PRESETS["llama3-8b"].layer_weights(0)
    factor = 3 if zero == 3 else 2
    assert sent_by_rank_0(workload)["dp"] == pytest.approx(factor * 3 / 4 * 2 * weights, abs=16)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_gradient_bytes_and_embeddings(zero: int) -> None:
    model = PRESETS["llama3-8b"]
    workload = synth(model, dp=2, layers=2, zero=zero, grad_bytes=4, mfu=0.5)
    layers, tables = 2 * model.layer_weights(0), 2 * model.embedding_weights
    each = {0: (8, 8), 1: (6, 6), 3: (8, 6)}[zero]  # bytes per weight sent twice half
    expected = (each[0] * layers + each[1] * tables) / 2
    assert sent_by_rank_0(workload)["dp"] == pytest.approx(expected, abs=64)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_pipeline_bytes(sequence_parallel: bool) -> None:  # noqa: FBT001 (a parameter of the test)
    """2 m a b s h per boundary, over t where the sequence is sharded."""
    workload = synth(
        "llama3-8b", pp=4, tp=2, layers=4, micro_batch=2, micro_batches=6, mfu=0.5,
        sequence_parallel=sequence_parallel, **BARE,
    )  # fmt: skip
    total = sum(
        part.in_bytes or 0
        for op in workload.operations
        if not isinstance(op, Compute) and op.kind == "send_recv"
        for part in op.ranks.values()
    )
    whole = 3 * 2 * 6 * 2 * 2 * 8192 * 4096 * 2  # boundaries, ways, m, a, b, s, h, t
    assert total == (whole // 2 if sequence_parallel else whole)


def test_expert_parallel_bytes() -> None:
    """4 (e-1)/e k a T h per layer; DeepSeek-V3 with EP64, 4,096 tokens a GPU."""
    workload = synth("deepseek-v3", ep=64, dp=64, layers=4, seq=4096, mfu=0.4, **BARE)
    expected = 4 * 63 / 64 * 8 * 2 * 4096 * 7168
    assert sent_by_rank_0(workload)["ep"] == expected


def test_opus_sheet_is_the_upper_bound_of_deepseek_v2() -> None:
    """DeepSeek-V2-236B, EP32 PP8: 1.9 TB a GPU and step, (e-1)/e and own tokens left out there."""
    v2 = {
        "layers": 60, "hidden": 5120, "ffn": 12_288, "heads": 128, "head_dim": 128,
        "vocab": 102_400, "experts": 160, "experts_per_token": 6, "shared_experts": 2,
        "expert_ffn": 1536, "dense_layers": 1, "q_rank": 1536, "kv_rank": 512, "rope_dim": 64,
    }  # fmt: skip
    assert find_model(v2).weights() / 1e9 == pytest.approx(235.7, abs=0.3)
    workload = synth(v2, ep=32, dp=32, layers=2, seq=16_384, mfu=0.4, **BARE)
    per_layer = sent_by_rank_0(workload)["ep"]
    assert 59 / 8 * 64 * per_layer * 32 / 31 == pytest.approx(1.9e12, rel=0.01)


def test_context_parallel_bytes() -> None:
    """(c-1)/c of keys and values forward, twice that backward."""
    workload = synth("llama3-8b", cp=4, layers=2, mfu=0.5, **BARE)
    keys_and_values = 2 * 2 * 8192 * 8 * 128
    assert sent_by_rank_0(workload)["cp"] == 2 * 3 * 3 / 4 * keys_and_values
    one = synth("llama3-8b", layers=2, mfu=0.5, **BARE)
    assert compute_ns(workload) == pytest.approx(compute_ns(one) / 4, rel=1e-6)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_embeddings(tp: int) -> None:
    """Sharded tables sum a lookup, gather for the logits and sum three floats a token."""
    bare = synth("llama3-8b", tp=tp, layers=1, mfu=0.5, embeddings="omitted")
    sharded = synth("llama3-8b", tp=tp, layers=1, mfu=0.5, embeddings="sharded")
    more = {
        key: value - sent_by_rank_0(bare).get(key, 0)
        for key, value in sent_by_rank_0(sharded).items()
    }
    if tp == 1:
        assert more == {}
        return
    share, activation = (tp - 1) / tp, 2 * 8192 * 4096
    floats = 3 * 2 * share * 4 * 8192
    assert more == {"tp": 4 * share * activation + floats}


def test_tied_tables_are_summed_between_the_ends_of_the_pipeline() -> None:
    workload = synth("llama3-8b", pp=2, dp=2, layers=2, mfu=0.5, embeddings="tied")
    table = 2 * PRESETS["llama3-8b"].embedding_weights
    tied = [op for op in workload.operations if getattr(op, "group", "").startswith("tied")]
    assert [set(op.ranks) for op in tied] == [{0, 2}, {1, 3}]
    assert {part.in_bytes for op in tied for part in op.ranks.values()} == {table}


def test_buckets_are_filled_before_they_are_sent() -> None:
    layer = 2 * PRESETS["llama3-8b"].layer_weights(0)
    small = synth("llama3-8b", dp=2, layers=5, mfu=0.5, **BARE)
    large = synth("llama3-8b", dp=2, layers=5, mfu=0.5, bucket_bytes=2 * layer, **BARE)

    def sizes(workload: Any) -> list[int]:
        return [op.ranks[0].in_bytes for op in workload.operations if hasattr(op, "ranks")]

    assert sizes(small) == [layer] * 5
    assert sizes(large) == [2 * layer, 2 * layer, layer]


def test_overlap_sums_gradients_while_others_are_computed() -> None:
    def deps(*, overlap: bool) -> list[tuple[int, ...]]:
        workload = synth("llama3-8b", dp=2, layers=3, mfu=0.5, overlap=overlap, **BARE)
        return [op.ranks[0].deps for op in workload.operations if hasattr(op, "ranks")]

    assert len(set(deps(overlap=True))) == 3
    assert len(set(deps(overlap=False))) == 1


def test_roofline_is_slower_than_the_peak_and_faster_gpus_are_faster() -> None:
    times = [
        compute_ns(synth("llama3-8b", tp=4, layers=2, gpu=gpu, **BARE))
        for gpu in ("A100", "H100", "H200", "B200")
    ]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4
    peak = compute_ns(synth("llama3-8b", tp=4, layers=2, mfu=1.0, **BARE))
    assert peak < times[0] < 1.5 * peak


def test_roofline_of_one_row_is_memory() -> None:
    clock = Clock(find_gpu("a100"))
    assert clock.matmul_ns(1, 4096**2) == pytest.approx(2 * 4096**2 / 2.039e12 * 1e9, rel=1e-3)
    assert clock.matmul_ns(10**6, 4096**2) == pytest.approx(2e6 * 4096**2 / 312e12 * 1e9, rel=1e-9)


def test_symbolic_tensor_graphs_counts() -> None:
    """Its Llama step of 8 layers, TP4 x DP2: 48 AG, 32 RS, 8 AR of 54.5 M elements a rank."""
    workload = synth("llama3-8b", tp=4, dp=2, layers=8, mfu=0.5, **BARE)
    calls: dict[tuple[str, int], int] = defaultdict(int)
    for op in workload.operations:
        if not isinstance(op, Compute) and 0 in op.ranks:
            calls[op.kind, op.ranks[0].in_bytes // 2] += 1
    assert calls == {
        ("all_gather", 8_388_608): 48,
        ("reduce_scatter", 33_554_432): 32,
        ("all_reduce", 54_528_000): 8,
    }
    tables = synth("llama3-8b", tp=4, dp=2, layers=8, mfu=0.5, embeddings="replicated")
    whole = [op for op in tables.operations if getattr(op, "group", "").startswith("stage")]
    assert [op.ranks[0].in_bytes // 2 for op in whole] == [128_256 * 4096] * 2
