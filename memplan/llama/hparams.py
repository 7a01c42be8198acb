"""The hyper-parameters that models of every architecture have, read from a GGUF header as llama.cpp reads them.

Follows src/llama-model.cpp (``llama_model_base::load_hparams``), src/llama-hparams.cpp and src/llama-vocab.cpp
(``load``), v0.5.0; v0.4.0 reads the same. An architecture adds its own in a subclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from memplan.errors import BadHyperParameter, MissingKey, shown
from memplan.gguf.header import SkippedArray
from memplan.llama.keys import CONVERT, MAX_LAYERS, Keys
from memplan.releases import Release

MAX_EXPERTS = 1024
"""LLAMA_MAX_EXPERTS; half as many before ``_MORE_EXPERTS_SINCE``, the first build seen with so many."""

_MORE_EXPERTS_SINCE = 10605

_PASSED_OVER: Mapping[str, type] = {
    "embedding_length_out": int, "pooling_type": int, "rope.scaling.finetuned": bool, "rope.freq_base": float,
    "rope.scaling.factor": float, "rope.scaling.attn_factor": float, "rope.scaling.alpha": float,
    "rope.scaling.yarn_log_multiplier": float,
}  # fmt: skip
"""Keys that decide no memory, and that llama.cpp refuses where they are of another type."""

_NO_VOCAB = frozenset({"none", "no_vocab"})
_NEEDS_MERGES = frozenset({"gpt2", "hybriddna", "whitespace", "gemma4"})
_TOKENIZERS = frozenset({"llama", "bert", "t5", "rwkv", "plamo2"}) | _NEEDS_MERGES
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, kw_only=True)
class HParams:
    """What graph, caches and weights depend on; llama.cpp's names, sizes in elements. Tuples hold a value a block.

    ``n_layer_all``: blocks in the file.  ``n_layer``: without the ``n_layer_nextn`` MTP blocks at the end.
    ``n_embd_head_k_full`` and ``_swa``, ``n_rot_full`` and ``_swa``: head size and its rotated part on layers with full
    attention and on those that slide.  ``n_swa``: the window, 0 for none.  ``is_swa``: which layers slide.
    ``n_vocab``: tokens as llama.cpp counts them.  ``rope_scaling``: none, linear, yarn or longrope.
    ``n_ctx_orig_yarn``: tokens that the model was trained with before its context was stretched.
    ``n_expert_used``, ``n_ff``, ``n_head``, ``n_head_kv``: by block.
    """

    arch: str
    n_layer_all: int
    n_layer_nextn: int
    n_ctx_train: int
    n_ctx_orig_yarn: int
    n_vocab: int
    n_embd: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    n_embd_head_k_full: int
    n_embd_head_v_full: int
    n_embd_head_k_swa: int
    n_embd_head_v_swa: int
    n_rot_full: int
    n_rot_swa: int
    n_expert: int
    n_expert_used: tuple[int, ...]
    n_expert_groups: int
    n_group_used: int
    causal_attn: bool
    rope_scaling: str
    n_swa: int = 0
    is_swa: tuple[bool, ...] = ()

    @property
    def n_layer(self) -> int:
        """Blocks that the model runs, MTP blocks left out (``llama_hparams::n_layer``)."""
        return self.n_layer_all - self.n_layer_nextn

    def slides(self, il: int) -> bool:
        """Whether a layer attends to a window alone (``llama_hparams::is_swa``)."""
        return bool(self.is_swa) and self.is_swa[il]

    def n_embd_head_k(self, il: int = 0) -> int:
        """Elements of one head's keys on a layer."""
        return self.n_embd_head_k_swa if self.slides(il) else self.n_embd_head_k_full

    def n_embd_head_v(self, il: int = 0) -> int:
        """Elements of one head's values on a layer."""
        return self.n_embd_head_v_swa if self.slides(il) else self.n_embd_head_v_full

    def n_rot(self, il: int = 0) -> int:
        """The rotated part of a head on a layer."""
        return self.n_rot_swa if self.slides(il) else self.n_rot_full

    def n_embd_k_gqa(self, il: int = 0) -> int:
        """Elements of all heads' keys of a token on a layer."""
        return self.n_embd_head_k(il) * self.n_head_kv[il]

    def n_embd_v_gqa(self, il: int = 0) -> int:
        """Elements of all heads' values of a token on a layer."""
        return self.n_embd_head_v(il) * self.n_head_kv[il]

    @property
    def n_embd_v_gqa_max(self) -> int:
        """The most of any layer (``n_embd_v_gqa_max``): rows of a transposed cache are padded to it."""
        return max(self.n_embd_v_gqa(il) for il in range(self.n_layer_all))

    @property
    def n_embd_out(self) -> int:
        """Width of the hidden state that a context gives out."""
        return self.n_embd

    @property
    def n_pos_per_embd(self) -> int:
        """Positions a token: four with mrope."""
        return 1

    def of_layer(self, il: int) -> tuple[object, ...]:
        """All that is given a block, for this one: layers that differ here differ in their graphs."""
        return tuple([getattr(self, name)[il] for name in _by_layer(type(self)) if getattr(self, name)])


_names: dict[object, tuple[str, ...]] = {}


def _by_layer(kind: type[HParams]) -> tuple[str, ...]:
    """The fields that hold a value a block."""
    if kind not in _names:
        _names[kind] = tuple(f.name for f in fields(kind) if str(f.type).endswith(", ...]"))
    return _names[kind]


def common(k: Keys, release: Release, nextn_since: int = 0) -> dict[str, Any]:
    """The fields of ``HParams`` by name, checked in llama.cpp's own order.

    ``nextn_since``: the first build seen that knows of the architecture's MTP blocks, which are layers before.

    Raises MissingKey and BadHyperParameter - the latter also where llama.cpp would stop with an assertion or an error
    of its own.
    """
    header = k.header
    k.check(isinstance(header.metadata.get("general.name", ""), str), "general.name is not text")
    n_ctx_train = k.u32("context_length")
    n_embd = k.u32("embedding_length")
    n_all = k.u32("block_count")
    k.check(0 < n_all <= MAX_LAYERS, f"block_count is {n_all}; llama.cpp takes 1 to {MAX_LAYERS}")
    nextn = k.u32("nextn_predict_layers", 0) if release.build >= nextn_since else 0
    k.check(nextn < n_all, f"nextn_predict_layers is {nextn} of {n_all} blocks; at least one must be left to run")

    n_expert = k.u32("expert_count", 0)
    by_layer = release.experts_used_by_layer
    used = k.u32_a_layer("expert_used_count", n_all, 0) if by_layer else (k.u32("expert_used_count", 0),) * n_all
    groups = k.u32("expert_group_count", 0)
    group_used = k.u32("expert_group_used_count", 0)
    most = MAX_EXPERTS if release.build >= _MORE_EXPERTS_SINCE else MAX_EXPERTS // 2
    k.check(n_expert <= most, f"expert_count is {n_expert}; llama.cpp {release.name} takes at most {most}")
    if n_expert:
        k.check(max(used) > 0, f"expert_used_count is {max(used)} of {n_expert} experts")
        k.check(groups < n_expert, f"expert_group_count is {groups} for {n_expert} experts")
        if groups > 1:
            k.check(n_expert % groups == 0, f"{n_expert} experts do not divide into {groups} groups")
            k.check(0 < group_used < groups, f"expert_group_used_count is {group_used} of {groups} groups")
    else:
        k.check(max(used) == 0, f"expert_used_count is {max(used)}, and there are no experts")
        k.check(groups == 0, f"expert_group_count is {groups}, and there are no experts")

    n_head = k.u32_a_layer("attention.head_count", n_all, 0)
    head_kv = k.u32_a_layer("attention.head_count_kv", n_all, n_head)
    head_k = head_v = rot = 0
    if n_head[0]:
        head_k = k.u32("attention.key_length", n_embd // n_head[0])
        head_v = k.u32("attention.value_length", n_embd // n_head[0])
        rot = k.u32("rope.dimension_count", head_k)
    for key, kind in _PASSED_OVER.items():
        k.check_type(key, kind)
    scaling = k.text("rope.scaling.type", "linear")
    k.check(scaling in _ROPE_SCALINGS, f"rope.scaling.type {shown(scaling)} is none of {', '.join(_ROPE_SCALINGS)}")
    return {
        "arch": k.arch,
        "n_layer_all": n_all,
        "n_layer_nextn": nextn,
        "n_ctx_train": n_ctx_train,
        "n_ctx_orig_yarn": k.u32("rope.scaling.original_context_length", n_ctx_train),
        "n_vocab": _n_vocab(header.metadata, k),
        "n_embd": n_embd,
        "n_head": n_head,
        "n_head_kv": head_kv,
        "n_ff": k.u32_a_layer("feed_forward_length", n_all, 0),
        "n_embd_head_k_full": head_k,
        "n_embd_head_v_full": head_v,
        "n_embd_head_k_swa": k.u32("attention.key_length_swa", head_k),
        "n_embd_head_v_swa": k.u32("attention.value_length_swa", head_v),
        "n_rot_full": rot,
        "n_rot_swa": k.u32("rope.dimension_count_swa", rot),
        "n_expert": n_expert,
        "n_expert_used": used,
        "n_expert_groups": groups,
        "n_group_used": group_used,
        "causal_attn": k.flag("attention.causal", True),
        "rope_scaling": scaling,
    }


def swa_pattern(k: Keys, fields: Mapping[str, Any], period: int, release: Release) -> tuple[bool, ...]:
    """Which layers slide: as the file says, or all but each ``period``-th (``load_swa_pattern``)."""
    n_all = fields["n_layer_all"]
    n_layer = n_all - fields["n_layer_nextn"]
    k.check_type("rope.freq_base_swa", float)
    key = "attention.sliding_window_pattern"
    if not isinstance(k.value(key), tuple | SkippedArray):
        period = k.u32(key, period)
    elif release.swa_pattern_by_layer:
        return swa_layers(k, n_all)
    return tuple([il < n_layer and (period == 0 or il % period < period - 1) for il in range(n_all)])


def swa_layers(k: Keys, n_all: int) -> tuple[bool, ...]:
    """Which layers slide, by an array that may be shorter or longer (``get_arr``)."""
    k.check_type("rope.freq_base_swa", float)
    given = k.bits("attention.sliding_window_pattern")
    return tuple([*given, *(False,) * n_all][:n_all])


GATINGS: Mapping[int, str] = {1: "SOFTMAX", 2: "SIGMOID", 3: "SOFTMAX_WEIGHT", 4: "SQRT_SOFTPLUS"}
"""How experts are weighted, by ``expert_gating_func``."""


def expert_gating(k: Keys, default: int = 0) -> str:
    """How experts are weighted; ``default``: the number where the file says 0 or nothing. Raises BadHyperParameter."""
    gating = k.u32("expert_gating_func", 0) or default
    k.check(gating in GATINGS, f"expert_gating_func is {gating}, which llama.cpp does not know")
    return GATINGS[gating]


def _n_vocab(metadata: Mapping[str, object], k: Keys) -> int:
    """Tokens of the vocabulary: the token list's length, or ``vocab_size`` where there is no tokenizer.

    Pre-tokenizer names are not checked.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise MissingKey("metadata key tokenizer.ggml.model is missing; llama.cpp needs it to count the vocabulary")
    if model in _NO_VOCAB:
        return k.u32("vocab_size", 0)
    if model not in _TOKENIZERS:
        raise BadHyperParameter(f"metadata key tokenizer.ggml.model: unknown tokenizer {shown(str(model))}; {CONVERT}")
    if model in _NEEDS_MERGES and "tokenizer.ggml.merges" not in metadata:
        raise MissingKey(f"metadata key tokenizer.ggml.merges is missing; tokenizer {model} needs it")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        raise MissingKey("metadata key tokenizer.ggml.tokens is missing; llama.cpp needs it to count the vocabulary")
    if isinstance(tokens, SkippedArray):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens)
    raise BadHyperParameter(f"metadata key tokenizer.ggml.tokens: expected an array of text; {CONVERT}")
