"""Transformers as dimensions: what they are made of, how many parameters and operations that is.

Presets are of the published configurations; a model of one's own is a mapping or a TOML file with
the fields of `Model`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topologies.errors import InputError, UsageError
from topologies.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PRESETS", "Model", "find_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The dimensions of a decoder-only transformer. Raises `UsageError` for impossible ones.

    `gated` feed-forwards have three matrices (SwiGLU) instead of two. `experts` > 0 makes every
    layer after the first `dense_layers` a mixture: each token goes to `experts_per_token` of them
    and to all `shared_experts`, each `expert_ffn` wide. `q_rank` and `kv_rank` > 0 make attention
    latent (DeepSeek-V2, arXiv 2405.04434 §2.1): `head_dim` is then of the part without position,
    `rope_dim` of the part with it. `positions` > 0 are learned position embeddings. `tied` says
    that input and output embedding are one matrix.
    """

    name: str = "model"
    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    kv_heads: int = 0
    head_dim: int = 0
    gated: bool = True
    tied: bool = False
    positions: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_ffn: int = 0
    dense_layers: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "ffn", "heads", "vocab"):
            self._require(getattr(self, name) >= 1, name, "the least possible is 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int):
                self._require(value >= 0, field.name, "it counts something")
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
            self._require(self.hidden % self.heads == 0, "heads", "it must divide hidden")
        self._require(self.heads % self.kv_heads == 0, "kv_heads", "it must divide heads")
        if self.experts:
            object.__setattr__(self, "expert_ffn", self.expert_ffn or self.ffn)
            most = self.experts
            chosen = self.experts_per_token
            self._require(1 <= chosen <= most, "experts_per_token", f"it is from 1 to {most}")
        latent = (self.q_rank > 0) == (self.kv_rank > 0)
        self._require(latent, "q_rank", "latent attention has q_rank and kv_rank")

    def _require(self, holds: bool, name: str, why: str) -> None:  # noqa: FBT001 (an assertion)
        if not holds:
            what = f"{name} is {getattr(self, name)}"
            raise UsageError(what, f"model {self.name}", why, f"correct {name}")

    @property
    def is_latent(self) -> bool:
        """Whether attention is latent (MLA)."""
        return self.kv_rank > 0

    def is_mixture(self, layer: int) -> bool:
        """Whether `layer` has experts."""
        return self.experts > 0 and layer >= self.dense_layers

    @property
    def attention_weights(self) -> int:
        """Elements of the matrices of one attention."""
        h, inner = self.hidden, self.heads * self.head_dim
        if not self.is_latent:
            return 2 * h * inner + 2 * h * self.kv_heads * self.head_dim
        turned = self.heads * self.rope_dim
        query = h * self.q_rank + self.q_rank * (inner + turned)
        key_value = h * (self.kv_rank + self.rope_dim) + self.kv_rank * 2 * inner
        return query + key_value + inner * h

    @property
    def ffn_weights(self) -> int:
        """Elements of the matrices of a dense layer's feed-forward."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def expert_weights(self) -> int:
        """Elements of the matrices of one expert."""
        return (3 if self.gated else 2) * self.hidden * self.expert_ffn

    @property
    def router_weights(self) -> int:
        """Elements of the matrix that chooses experts."""
        return self.hidden * self.experts

    @property
    def small_weights(self) -> int:
        """Norms of one layer, with the biases of an ungated (GPT) one.

        GPT: 13 h of 12 h^2 + 13 h (Narayanan et al., arXiv 2104.04473, eq. 2).
        """
        latent = self.q_rank + self.kv_rank
        return 2 * self.hidden + latent if self.gated else 9 * self.hidden + self.ffn

    def layer_weights(self, layer: int, *, active: bool = False) -> int:
        """Parameters of a layer; with `active` only those that one token meets."""
        weights = self.attention_weights + self.small_weights
        if not self.is_mixture(layer):
            return weights + self.ffn_weights
        experts = self.experts_per_token if active else self.experts
        met = (experts + self.shared_experts) * self.expert_weights
        return weights + met + self.router_weights

    @property
    def embedding_weights(self) -> int:
        """Elements of one vocabulary matrix."""
        return self.vocab * self.hidden

    def weights(self, *, active: bool = False) -> int:
        """Parameters of the whole model; with `active` only those that one token meets."""
        layers = sum(self.layer_weights(layer, active=active) for layer in range(self.layers))
        final = self.hidden if self.gated else 2 * self.hidden
        tables = (1 if self.tied else 2) * self.embedding_weights + self.positions * self.hidden
        return layers + final + tables

    def attention_flop(self, context: int, *, causal: bool) -> int:
        """Floating-point operations of attention itself, forward, per token and layer.

        2 x 2 x context x heads x dim (scores, then values), half of it under a causal mask
        (2104.04473, appendix; Korthikanti et al., arXiv 2205.05198, appendix A).
        """
        scores = self.head_dim + self.rope_dim if self.is_latent else self.head_dim
        full = 2 * context * self.heads * (scores + self.head_dim)
        return full // 2 if causal else full

    def step_flop(
        self, tokens: int, context: int, *, causal: bool = True, recompute: bool = False
    ) -> int:
        """Floating-point operations of a training step over `tokens`, all GPUs together.

        Forward 2 per weight and token, backward twice that, and with `recompute` forward again;
        the output layer is never recomputed. Without a mask this is 96 B s l h^2 (1 + s/6h +
        V/16lh) for a GPT with recomputation (2104.04473, eq. 3).
        """
        passes = 4 if recompute else 3
        per_token = 0
        for layer in range(self.layers):
            weights = self.layer_weights(layer, active=True) - self.small_weights
            per_token += passes * (2 * weights + self.attention_flop(context, causal=causal))
        return tokens * (per_token + 3 * 2 * self.embedding_weights)


def _llama(name: str, layers: int, hidden: int, ffn: int, heads: int) -> Model:
    """Llama 3: 8 key-value heads, 128,256 words (arXiv 2407.21783, table 3)."""
    return Model(
        name=name, layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=8, vocab=128_256
    )


def _mixtral(name: str, layers: int, heads: int, ffn: int, vocab: int) -> Model:
    """Mixtral: heads of 128, 8 experts, 2 of them for each token (arXiv 2401.04088, table 1)."""
    return Model(
        name=name, layers=layers, hidden=128 * heads, ffn=ffn, heads=heads, kv_heads=8, vocab=vocab,
        head_dim=128, experts=8, experts_per_token=2,
    )  # fmt: skip


PRESETS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        _llama("llama3-8b", 32, 4096, 14_336, 32),
        _llama("llama3-70b", 80, 8192, 28_672, 64),
        _llama("llama3-405b", 126, 16_384, 53_248, 128),
        Model(  # arXiv 2005.14165, table 2.1; the vocabulary as Megatron pads it (2104.04473)
            name="gpt3-175b", layers=96, hidden=12_288, ffn=4 * 12_288, heads=96, vocab=51_200,
            gated=False, tied=True, positions=2048,
        ),
        _mixtral("mixtral-8x7b", 32, 32, 14_336, 32_000),
        _mixtral("mixtral-8x22b", 56, 48, 16_384, 32_768),
        Model(  # arXiv 2412.19437, section 4.2
            name="deepseek-v3", layers=61, hidden=7168, ffn=18_432, heads=128, head_dim=128,
            vocab=129_280, experts=256, experts_per_token=8, shared_experts=1, expert_ffn=2048,
            dense_layers=3, q_rank=1536, kv_rank=512, rope_dim=64,
        ),
    )
}  # fmt: skip


def find_model(spec: str | Mapping[str, Any] | Model) -> Model:
    """Return a preset by name, the model of a `.toml` file, or one from a mapping of dimensions.

    Raises `UsageError` for an unknown name or dimension, `InputError` for an unreadable file.

    >>> round(find_model("llama3-8b").weights() / 1e9, 2)
    8.03
    """
    if isinstance(spec, Model):
        return spec
    if not isinstance(spec, str):
        return _from_mapping(spec, "model")
    if spec.endswith(".toml"):
        return _from_mapping(_read(Path(spec)), spec)
    if spec not in PRESETS:
        why = f"the models are {', '.join(PRESETS)}, or a .toml file of dimensions"
        fix = meant(spec, PRESETS, "choose one of them")
        raise UsageError(f"there is no model {spec!r}", "synth", why, fix)
    return PRESETS[spec]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError("the file cannot be read", str(path), why, "check the path") from error
    except ValueError as error:  # bad TOML and bad UTF-8 alike
        why = str(error)[:1].lower() + str(error)[1:]
        raise InputError("this is not TOML", str(path), why, "correct it") from error


def _from_mapping(dimensions: Mapping[str, Any], where: str) -> Model:
    known = {field.name: field for field in fields(Model)}
    for key, value in dimensions.items():
        if key not in known:
            why = f"a model has {', '.join(known)}"
            raise UsageError(f"there is no dimension {key!r}", where, why, "choose one of them")
        wanted = {"str": str, "bool": bool}.get(str(known[key].type), int)
        if type(value) is not wanted:
            what = f"{key} is {value!r}"
            raise UsageError(what, where, f"it is of type {wanted.__name__}", f"correct {key}")
    needed = ("layers", "hidden", "ffn", "heads", "vocab")
    if missing := [name for name in needed if name not in dimensions]:
        why = f"a model needs {', '.join(needed)}"
        raise UsageError(f"{missing[0]} is missing", where, why, f"add {missing[0]}")
    return Model(**dimensions)
