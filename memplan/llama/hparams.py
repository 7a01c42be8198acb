"""DeepSeek-V4's hyper-parameters, read from a GGUF header as llama.cpp reads them.

Follows src/llama-model.cpp (``llama_model_base::load_hparams``), src/models/deepseek4.cpp (``load_arch_hparams``),
src/llama-model-loader.cpp (``get_key``, ``get_key_or_arr``, ``get_arr``) and src/llama-vocab.cpp (``load``), v0.5.0;
v0.4.0 reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memplan.errors import BadHyperParameter, MissingKey, UnsupportedArchitecture, shown
from memplan.gguf.header import Header, SkippedArray, names_file
from memplan.releases import LATEST, Release

ARCH = "deepseek4"
MAX_LAYERS = 512
MAX_EXPERTS = 1024
_U32 = (1 << 32) - 1
SQRT_SOFTPLUS = 4
"""``expert_gating_func`` of sqrtsoftplus, the only scoring that DeepSeek-V4's loader takes."""

CSA_RATIO = 4
HCA_RATIO = 128

_NO_VOCAB = frozenset({"none", "no_vocab"})
_NEEDS_MERGES = frozenset({"gpt2", "hybriddna", "whitespace", "gemma4"})
_TOKENIZERS = frozenset({"llama", "bert", "t5", "rwkv", "plamo2"}) | _NEEDS_MERGES
_GGUF_TYPE = {int: "u32", float: "f32", bool: "bool", str: "str"}
_ARRAY_TYPES = {int: ("arr[u32]", "arr[i32]"), float: ("arr[f32]",)}
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class HParams:
    """What graph, caches and weights of a DeepSeek-V4 model depend on; llama.cpp's names, sizes in elements.

    ``n_layer_all``: blocks in the file.  ``n_layer``: without the ``n_layer_nextn`` MTP blocks at the end.
    ``n_embd_head_k``, ``n_embd_head_v``: head size, the same on every layer, since all of them slide;
    ``n_embd_head_k_full``: what it would be on a layer that does not.  ``n_rot``: rotated part of a head.
    ``compress_ratios``: 0, 4 (CSA) or 128 (HCA) a block, ``n_layer_all`` entries.  ``hash_layer_count``: the first so
    many layers pick experts by token id.  ``hc_mult``: hyper-connection streams.  ``swiglu_clamp_exp``,
    ``swiglu_clamp_shexp``: limits a block; none where at most 1e-6.
    ``n_vocab``: tokens as llama.cpp counts them.  ``rope_scaling``: none, linear, yarn or longrope.
    """

    n_layer_all: int
    n_layer_nextn: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_embd_head_k: int
    n_embd_head_v: int
    n_embd_head_k_full: int
    n_rot: int
    n_lora_q: int
    o_group_count: int
    o_lora_rank: int
    n_swa: int
    compress_ratios: tuple[int, ...]
    indexer_n_head: int
    indexer_head_size: int
    indexer_top_k: int
    n_expert: int
    n_expert_used: int
    n_expert_shared: int
    n_expert_groups: int
    n_group_used: int
    n_ff_exp: int
    expert_gating_func: int
    expert_weights_scale: float
    expert_weights_norm: bool
    swiglu_clamp_exp: tuple[float, ...]
    swiglu_clamp_shexp: tuple[float, ...]
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    hash_layer_count: int
    f_norm_rms_eps: float
    causal_attn: bool
    rope_scaling: str
    rope_freq_base: float
    rope_freq_scale: float
    compress_rope_base: float
    n_ctx_orig_yarn: int

    @property
    def n_layer(self) -> int:
        """Blocks that the model runs, MTP blocks left out (``llama_hparams::n_layer``)."""
        return self.n_layer_all - self.n_layer_nextn

    @property
    def n_embd_out(self) -> int:
        """Width of the hidden state that a context gives out."""
        return self.hc_mult * self.n_embd


class _Keys:
    """Typed access to an architecture's metadata; every fault names the key and what llama.cpp expects of it."""

    def __init__(self, header: Header, arch: str, overrides: Mapping[str, object]) -> None:
        self._metadata: Mapping[str, object] = header.metadata
        self._types = header.value_types
        self._arch = arch
        self._overrides = overrides

    def full(self, key: str) -> str:
        return f"{self._arch}.{key}"

    def value(self, key: str) -> object:
        """The raw value, or None when the key is absent."""
        return self._metadata.get(self.full(key))

    def _scalar(self, key: str, kind: type) -> object:
        """One scalar's value: an override's, if that has the right type (``GGUFMeta::GKV::set``), or the file's."""
        v = self._overrides.get(self.full(key))
        if type(v) is kind:
            return v & _U32 if type(v) is int else v
        v = self.value(key)
        if type(v) is kind:
            self._check_type(key, _GGUF_TYPE[kind])
        return v

    def _fault(self, key: str, said: str, mend: str = "convert the model again") -> BadHyperParameter:
        return BadHyperParameter(f"metadata key {self.full(key)}: {said}; {mend}")

    def _required(self, key: str, kind: type | None = None) -> object:
        v = self.value(key) if kind is None else self._scalar(key, kind)
        if v is None:
            raise MissingKey(
                f"metadata key {self.full(key)} is missing; {self._arch} needs it, convert the model again"
            )
        return v

    def _check_type(self, key: str, *kinds: str) -> None:
        """llama.cpp takes one GGUF type a key, whatever the value; headers made in memory may leave types out."""
        found = self._types.get(self.full(key), kinds[0])
        if found not in kinds:
            raise self._fault(key, f"stored as {found}, and llama.cpp takes {' or '.join(kinds)}")

    def _as_u32(self, key: str, v: object) -> int:
        if isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < 1 << 32:
            raise self._fault(key, f"expected an unsigned 32-bit integer, found {shown(str(v))}")
        return v

    def _as_f32(self, key: str, v: object) -> float:
        if not isinstance(v, float):
            raise self._fault(key, f"expected a float, found {shown(str(v))}")
        return v

    def u32(self, key: str, default: int | None = None) -> int:
        v = self._scalar(key, int)
        if v is None and default is not None:
            return default
        return self._as_u32(key, self._required(key, int))

    def f32(self, key: str, default: float | None = None) -> float:
        v = self._scalar(key, float)
        if v is None and default is not None:
            return default
        return self._as_f32(key, self._required(key, float))

    def flag(self, key: str, default: bool | None = None) -> bool:
        v = self._scalar(key, bool)
        if v is None and default is not None:
            return default
        v = self._required(key, bool)
        if not isinstance(v, bool):
            raise self._fault(key, f"expected true or false, found {shown(str(v))}")
        return v

    def text(self, key: str, default: str) -> str:
        v = self._scalar(key, str)
        if v is None:
            return default
        if not isinstance(v, str):
            raise self._fault(key, f"expected text, found {shown(str(v))}")
        return v

    def _array(self, key: str, v: object) -> tuple[object, ...] | None:
        if isinstance(v, SkippedArray):
            raise self._fault(key, f"an array of {v.length} elements is longer than the {MAX_LAYERS} llama.cpp holds")
        return v if isinstance(v, tuple) else None

    def _a_layer(self, key: str, n: int, kind: type) -> tuple[object, ...]:
        """One value repeated, or an array of ``n`` (``get_key_or_arr``); only a single value can be overridden."""
        items = self._array(key, self._required(key))
        if items is None:
            return (self._scalar(key, kind),) * n
        if len(items) != n:
            raise self._fault(key, f"expected {n} elements, one a block, found {len(items)}")
        self._check_type(key, *_ARRAY_TYPES[kind])
        return items

    def u32_a_layer(self, key: str, n: int, default: int | None = None) -> int:
        """A value that may be given a block; memplan models those that are the same on every block."""
        if self.value(key) is None and default is not None:
            return default
        values = {self._as_u32(key, v) for v in self._a_layer(key, n, int)}
        if len(values) != 1:
            raise self._fault(key, "values that differ from block to block are not modelled", "use one value for all")
        return values.pop()

    def f32_a_layer(self, key: str, n: int) -> tuple[float, ...]:
        return tuple(self._as_f32(key, v) for v in self._a_layer(key, n, float))

    def ratios(self, key: str, n: int) -> tuple[int, ...]:
        """At least ``n`` elements, each 0, 4 or 128 (``load_arch_hparams``, ``load_arch_tensors``)."""
        items = self._array(key, self._required(key))
        if items is None:
            raise self._fault(key, "expected an array")
        if len(items) < n:
            raise self._fault(key, f"{len(items)} elements for {n} blocks: shorter than block_count")
        if len(items) > MAX_LAYERS:
            raise self._fault(key, f"{len(items)} elements, more than the {MAX_LAYERS} llama.cpp holds")
        self._check_type(key, *_ARRAY_TYPES[int])
        for i, r in enumerate(items[:n]):
            if isinstance(r, bool) or r not in (0, CSA_RATIO, HCA_RATIO):
                raise self._fault(key, f"ratio {shown(str(r))} of block {i} is none of 0, {CSA_RATIO}, {HCA_RATIO}")
        return tuple(int(str(r)) for r in items[:n])


@names_file
def load_hparams(
    header: Header,
    kv_overrides: Iterable[tuple[str, int | float | bool | str]] = (),
    release: Release = LATEST,
) -> HParams:
    """The hyper-parameters of ``header``'s model; ``kv_overrides``: what ``--override-kv`` puts in the file's place.

    Raises UnsupportedArchitecture, MissingKey, BadHyperParameter - the last also where llama.cpp would stop with an
    assertion or an error of its own.  Follows ``load_hparams`` and ``load_arch_hparams`` (see the module).
    """
    overrides: dict[str, object] = {}
    for key, value in kv_overrides:
        overrides.setdefault(key, value)  # llama.cpp keeps the first
    arch = header.metadata.get("general.architecture")
    if arch is None:
        raise MissingKey("metadata key general.architecture is missing; is this a model, and its first shard?")
    if arch != ARCH:
        raise UnsupportedArchitecture(f"architecture {shown(str(arch))} is not modelled; memplan knows: {ARCH}")
    k = _Keys(header, ARCH, overrides)

    n_all = k.u32("block_count")
    _check(0 < n_all <= MAX_LAYERS, f"block_count is {n_all}; llama.cpp takes 1 to {MAX_LAYERS}")
    nextn = k.u32("nextn_predict_layers", 0) if release.mtp_tensors else 0
    _check(nextn < n_all, f"nextn_predict_layers is {nextn} of {n_all} blocks; at least one must be left to run")
    if nextn and f"blk.{n_all - nextn}.nextn.eh_proj.weight" not in header.tensors:
        nextn = 0

    n_embd = k.u32("embedding_length")
    n_head = k.u32_a_layer("attention.head_count", n_all)
    _check(n_embd > 0 and n_head > 0, f"embedding_length {n_embd} and head_count {n_head} must not be zero")
    n_head_kv = k.u32_a_layer("attention.head_count_kv", n_all, n_head)
    head_k = k.u32("attention.key_length", n_embd // n_head)
    head_v = k.u32("attention.value_length", n_embd // n_head)
    rot = k.u32("rope.dimension_count", head_k)

    n_expert = k.u32("expert_count", 0)
    used = k.u32_a_layer("expert_used_count", n_all, 0)
    groups = k.u32("expert_group_count", 0)
    group_used = k.u32("expert_group_used_count", 0)
    _check(0 < n_expert <= MAX_EXPERTS, f"expert_count is {n_expert}; llama.cpp takes 1 to {MAX_EXPERTS} here")
    _check(used > 0, f"expert_used_count is {used} of {n_expert} experts")
    _check(groups < n_expert, f"expert_group_count is {groups} for {n_expert} experts")
    if groups > 1:
        _check(n_expert % groups == 0, f"{n_expert} experts do not divide into {groups} groups")
        _check(0 < group_used < groups, f"expert_group_used_count is {group_used} of {groups} groups")

    gating = k.u32("expert_gating_func")
    _check(gating == SQRT_SOFTPLUS, f"expert_gating_func is {gating}; only sqrtsoftplus ({SQRT_SOFTPLUS}) is loaded")
    clamp = k.f32_a_layer("swiglu_clamp_exp", n_all)
    has_shexp = k.value("swiglu_clamp_shexp") is not None
    clamp_shexp = k.f32_a_layer("swiglu_clamp_shexp", n_all) if has_shexp else clamp
    hc = k.u32("hyper_connection.count")
    _check(hc > 0, "hyper_connection.count is zero")
    o_groups = k.u32("attention.output_group_count")
    _check(o_groups > 0, "attention.output_group_count is zero")

    scaling = k.text("rope.scaling.type", "linear")
    _check(scaling in _ROPE_SCALINGS, f"rope.scaling.type {shown(scaling)} is none of {', '.join(_ROPE_SCALINGS)}")
    factor = k.f32("rope.scaling.factor", k.f32("rope.scale_linear", 0.0))
    n_ctx_train = k.u32("context_length")

    return HParams(
        n_layer_all=n_all,
        n_layer_nextn=nextn,
        n_ctx_train=n_ctx_train,
        n_vocab=_n_vocab(header.metadata, k),
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        # every layer slides (set_swa_pattern(0)), so llama.cpp asks for the sizes of sliding layers throughout
        n_embd_head_k=k.u32("attention.key_length_swa", head_k),
        n_embd_head_v=k.u32("attention.value_length_swa", head_v),
        n_embd_head_k_full=head_k,
        n_rot=k.u32("rope.dimension_count_swa", rot),
        n_lora_q=k.u32("attention.q_lora_rank"),
        o_group_count=o_groups,
        o_lora_rank=k.u32("attention.output_lora_rank"),
        n_swa=k.u32("attention.sliding_window"),
        compress_ratios=k.ratios("attention.compress_ratios", n_all),
        indexer_n_head=k.u32("attention.indexer.head_count"),
        indexer_head_size=k.u32("attention.indexer.key_length"),
        indexer_top_k=k.u32("attention.indexer.top_k"),
        n_expert=n_expert,
        n_expert_used=used,
        n_expert_shared=k.u32("expert_shared_count"),
        n_expert_groups=groups,
        n_group_used=group_used,
        n_ff_exp=k.u32_a_layer("expert_feed_forward_length", n_all),
        expert_gating_func=gating,
        expert_weights_scale=k.f32("expert_weights_scale"),
        expert_weights_norm=k.flag("expert_weights_norm"),
        swiglu_clamp_exp=clamp,
        swiglu_clamp_shexp=clamp_shexp,
        hc_mult=hc,
        hc_sinkhorn_iters=k.u32("hyper_connection.sinkhorn_iterations"),
        hc_eps=k.f32("hyper_connection.epsilon"),
        hash_layer_count=k.u32("hash_layer_count"),
        f_norm_rms_eps=k.f32("attention.layer_norm_rms_epsilon"),
        causal_attn=k.flag("attention.causal", True),
        rope_scaling=scaling,
        rope_freq_base=k.f32("rope.freq_base", 10000.0),
        rope_freq_scale=1.0 / factor if factor else 1.0,
        compress_rope_base=k.f32("attention.compress_rope_freq_base"),
        n_ctx_orig_yarn=k.u32("rope.scaling.original_context_length", n_ctx_train),
    )


def _check(ok: bool, said: str) -> None:
    if not ok:
        raise BadHyperParameter(f"metadata of {ARCH}: {said}; convert the model again")


def _n_vocab(metadata: Mapping[str, object], k: _Keys) -> int:
    """Tokens of the vocabulary: the token list's length, or ``vocab_size`` where there is no tokenizer.

    Pre-tokenizer names are not checked.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise MissingKey("metadata key tokenizer.ggml.model is missing; llama.cpp needs it to count the vocabulary")
    if model in _NO_VOCAB:
        return k.u32("vocab_size", 0)
    if model not in _TOKENIZERS:
        raise BadHyperParameter(
            f"metadata key tokenizer.ggml.model: unknown tokenizer {shown(str(model))}; convert the model again"
        )
    if model in _NEEDS_MERGES and "tokenizer.ggml.merges" not in metadata:
        raise MissingKey(f"metadata key tokenizer.ggml.merges is missing; tokenizer {model} needs it")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        raise MissingKey("metadata key tokenizer.ggml.tokens is missing; llama.cpp needs it to count the vocabulary")
    if isinstance(tokens, SkippedArray):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens)
    raise BadHyperParameter("metadata key tokenizer.ggml.tokens: expected an array of text; convert the model again")
