"""The weights that llama.cpp asks a DeepSeek-V4 file for: names, shapes, and the op that each is used with.

Follows src/models/deepseek4.cpp (``load_arch_tensors``), src/llama-model.cpp (``load_tensors``: optional scales),
src/llama-arch.cpp (names, ``LLM_TENSOR_INFOS``) and src/llama-model-loader.cpp (``check_tensor_dims``,
``create_tensor``, ``done_getting_tensors``), v0.5.0; v0.4.0 asks for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from memplan.errors import BadTensorShape, MissingTensor
from memplan.ggml.tensor import Shape
from memplan.gguf.header import Header, TensorInfo, names_file
from memplan.gguf.types import GGMLType
from memplan.llama.hparams import CSA_RATIO, HParams
from memplan.llama.refusals import REFUSED, Refusal
from memplan.releases import LATEST, Release

INPUT = -1
"""``ModelTensor.layer`` of the input layer, always on the host."""

OUTPUT = -2
"""``ModelTensor.layer`` of the output layer."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """One weight as it is loaded.

    ``ne``: extents as the graph sees them (``attn_output_a`` is loaded as three dimensions where the release does
    so, whatever the file says).
    ``op``: the op that decides which buffer types can hold it.  ``layer``: its block, or INPUT, or OUTPUT.
    ``nbytes``: bytes of data.
    """

    name: str
    type: GGMLType
    ne: Shape
    op: str
    layer: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The weights in the order they are created, and what llama.cpp says of the file.

    ``skipped``: names that are in the file and not loaded (MTP blocks).  ``refusal``: set when the file holds
    tensors that this release does not ask for.
    """

    tensors: tuple[ModelTensor, ...]
    skipped: tuple[str, ...]
    refusal: Refusal | None

    def by_name(self) -> Mapping[str, ModelTensor]:
        """The same weights, by name."""
        return {t.name: t for t in self.tensors}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the loader asks for: a name, a shape, the op, and how strictly."""

    name: str
    shape: tuple[int, ...]
    op: str
    layer: int
    optional: bool = False
    reshape: bool = False


@names_file
def load_tensors(header: Header, hp: HParams, load_mtp: bool = False, release: Release = LATEST) -> ModelTensors:
    """The weights that are loaded from ``header``; ``load_mtp`` keeps the MTP blocks, which a plain server skips.

    Raises MissingTensor and BadTensorShape. Skipped blocks must be complete and of the right shape all the same.
    Counts as llama.cpp does: a skipped tensor is accounted for, an unknown one makes it refuse the file.
    """
    loaded: list[ModelTensor] = []
    skipped: list[str] = []
    for w in _wanted(header.tensors, hp, load_mtp, release):
        info = header.tensors.get(w.name)
        if info is None:
            if w.optional:
                continue
            raise MissingTensor(
                f"tensor {w.name} is missing; llama.cpp needs it with shape {_text(w.shape)}; convert the model again"
            )
        _check_shape(w, info)
        if w.layer >= hp.n_layer and not load_mtp:
            skipped.append(w.name)
            continue
        ne = _four(w.shape if w.reshape else info.shape)
        nbytes = info.type.row_size(ne[0]) * ne[1] * ne[2] * ne[3]
        loaded.append(ModelTensor(w.name, info.type, ne, w.op, w.layer, nbytes))
    return ModelTensors(tuple(loaded), tuple(skipped), _count(len(header.tensors), len(loaded) + len(skipped)))


def _count(expected: int, got: int) -> Refusal | None:
    if expected == got:
        return None
    return Refusal(
        "tensors-not-of-this-release",
        REFUSED,
        f"wrong number of tensors; expected {expected}, got {got}",
        "use a llama.cpp release that knows these tensors, or a file converted for this one",
    )


def _check_shape(w: _Wanted, info: TensorInfo) -> None:
    """As ``check_tensor_dims``: exactly, or by the number of elements where a reshape is allowed."""
    same = prod(info.shape) == prod(w.shape) if w.reshape else _four(info.shape) == _four(w.shape)
    # a reshaped row must still be whole blocks, or ggml's byte counts part ways and it aborts
    if same and w.reshape:
        same = w.shape[0] % info.type.block_size == 0
    if not same:
        raise BadTensorShape(
            f"tensor {w.name} has shape {_text(info.shape)}, but the hyper-parameters imply {_text(w.shape)}; "
            "convert the model again"
        )


def _four(shape: tuple[int, ...]) -> Shape:
    a, b, c, d = (*shape, 1, 1, 1)[:4]
    return a, b, c, d


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _wanted(have: Mapping[str, TensorInfo], hp: HParams, load_mtp: bool, release: Release) -> Iterator[_Wanted]:
    """Everything in the order of ``load_arch_tensors``, then the optional scales of ``load_tensors``."""
    e, v, hc = hp.n_embd, hp.n_vocab, hp.hc_mult
    yield _Wanted("token_embd.weight", (e, v), "GET_ROWS", INPUT)
    yield _Wanted("output_norm.weight", (e,), "MUL", OUTPUT)
    yield _Wanted("output.weight", (e, v), "MUL_MAT", OUTPUT)
    yield _Wanted("output_hc_fn.weight", (hc * e, hc), "MUL_MAT", OUTPUT)
    yield _Wanted("output_hc_base.weight", (hc,), "ADD", OUTPUT)
    yield _Wanted("output_hc_scale.weight", (1,), "MUL", OUTPUT)
    for il in range(hp.n_layer_all):
        yield from _attention(hp, il, release)
        yield from _compressors(hp, il, release)
        yield from _ffn(hp, il, release)
        if il >= hp.n_layer:
            yield from _mtp(hp, il)
    # scales are asked for beside weights that were loaded, so not in blocks that are skipped
    for il in range(hp.n_layer_all if load_mtp else hp.n_layer):
        yield from _scales(hp, il)
    output = have.get("output.weight")
    if output is not None and output.type.name == "nvfp4":
        for suffix in ("scale", "input_scale"):
            yield _Wanted(f"output.{suffix}", (1,), "MUL_MAT", OUTPUT, optional=True)


def _attention(hp: HParams, il: int, release: Release) -> Iterator[_Wanted]:
    e, heads, d, q = hp.n_embd, hp.n_head, hp.n_embd_head_k, hp.n_lora_q
    groups, lora, p = hp.o_group_count, hp.o_lora_rank, f"blk.{il}."
    yield _Wanted(p + "attn_norm.weight", (e,), "MUL", il)
    yield _Wanted(p + "attn_sinks.weight", (heads,), "SCALE", il)
    yield _Wanted(p + "attn_q_a.weight", (e, q), "MUL_MAT", il)
    yield _Wanted(p + "attn_q_a_norm.weight", (q,), "MUL", il)
    yield _Wanted(p + "attn_q_b.weight", (q, heads * d), "MUL_MAT", il)
    yield _Wanted(p + "attn_kv.weight", (e, d), "MUL_MAT", il)
    yield _Wanted(p + "attn_kv_a_norm.weight", (d,), "MUL", il)
    in_groups = release.attn_output_a_in_groups
    output_a = (heads * d // groups, lora, groups) if in_groups else (heads * d // groups, lora * groups)
    yield _Wanted(p + "attn_output_a.weight", output_a, "MUL_MAT", il, reshape=in_groups)
    yield _Wanted(p + "attn_output_b.weight", (groups * lora, e), "MUL_MAT", il)
    mix = (2 + hp.hc_mult) * hp.hc_mult
    for part in ("attn", "ffn"):
        yield _Wanted(f"{p}hc_{part}_fn.weight", (hp.hc_mult * e, mix), "MUL_MAT", il)
        yield _Wanted(f"{p}hc_{part}_base.weight", (mix,), "ADD", il)
        yield _Wanted(f"{p}hc_{part}_scale.weight", (3,), "MUL", il)


def _compressors(hp: HParams, il: int, release: Release) -> Iterator[_Wanted]:
    ratio = hp.compress_ratios[il]
    if not ratio:
        return
    e, d, i, p = hp.n_embd, hp.n_embd_head_k, hp.indexer_head_size, f"blk.{il}."
    coff = 2 if ratio == CSA_RATIO else 1
    ape = "ADD" if release.adds_compressor_ape else "GET_ROWS"
    yield from _compressor(p + "attn", e, coff * d, d, ratio, ape, il)
    if ratio == CSA_RATIO:
        yield _Wanted(p + "indexer.proj.weight", (e, hp.indexer_n_head), "MUL_MAT", il)
        yield _Wanted(p + "indexer.attn_q_b.weight", (hp.n_lora_q, hp.indexer_n_head * i), "MUL_MAT", il)
        yield from _compressor(p + "indexer", e, 2 * i, i, ratio, ape, il)


def _compressor(prefix: str, e: int, width: int, out: int, ratio: int, ape: str, il: int) -> Iterator[_Wanted]:
    yield _Wanted(prefix + "_compressor_kv.weight", (e, width), "MUL_MAT", il)
    yield _Wanted(prefix + "_compressor_gate.weight", (e, width), "MUL_MAT", il)
    yield _Wanted(prefix + "_compressor_ape.weight", (width, ratio), ape, il)
    yield _Wanted(prefix + "_compressor_norm.weight", (out,), "MUL", il)


def _ffn(hp: HParams, il: int, release: Release) -> Iterator[_Wanted]:
    e, n, ff, p = hp.n_embd, hp.n_expert, hp.n_ff_exp, f"blk.{il}."
    yield _Wanted(p + "ffn_gate_inp.weight", (e, n), "MUL_MAT", il)
    if il < hp.hash_layer_count:
        yield _Wanted(p + "ffn_gate_tid2eid.weight", (hp.n_expert_used, hp.n_vocab), "GET_ROWS", il)
    else:
        yield _Wanted(p + "exp_probs_b.bias", (n,), "ADD", il)
    if release.image_routing_bias:
        yield _Wanted(p + "exp_probs_b_vl.bias", (n,), "ADD", il, optional=True)
    yield _Wanted(p + "ffn_norm.weight", (e,), "MUL", il)
    yield _Wanted(p + "ffn_gate_exps.weight", (e, ff, n), "MUL_MAT_ID", il)
    yield _Wanted(p + "ffn_down_exps.weight", (ff, e, n), "MUL_MAT_ID", il)
    yield _Wanted(p + "ffn_up_exps.weight", (e, ff, n), "MUL_MAT_ID", il)
    shared = ff * hp.n_expert_shared
    yield _Wanted(p + "ffn_gate_shexp.weight", (e, shared), "MUL_MAT", il)
    yield _Wanted(p + "ffn_down_shexp.weight", (shared, e), "MUL_MAT", il)
    yield _Wanted(p + "ffn_up_shexp.weight", (e, shared), "MUL_MAT", il)


def _mtp(hp: HParams, il: int) -> Iterator[_Wanted]:
    e, v, p = hp.n_embd, hp.n_vocab, f"blk.{il}.nextn."
    yield _Wanted(p + "eh_proj.weight", (2 * e, e), "MUL_MAT", il)
    yield _Wanted(p + "enorm.weight", (e,), "MUL", il)
    yield _Wanted(p + "hnorm.weight", (e,), "MUL", il)
    yield _Wanted(p + "embed_tokens.weight", (e, v), "GET_ROWS", il, optional=True)
    yield _Wanted(p + "shared_head_head.weight", (e, v), "MUL_MAT", il, optional=True)
    yield _Wanted(p + "shared_head_norm.weight", (e,), "MUL", il, optional=True)


def _scales(hp: HParams, il: int) -> Iterator[_Wanted]:
    """Scales that some quantisations keep beside a weight."""
    for suffix in ("scale", "input_scale"):
        for part in ("gate", "down", "up"):
            yield _Wanted(f"blk.{il}.ffn_{part}_shexp.{suffix}", (1,), "MUL_MAT", il, optional=True)
        for part in ("gate", "down", "up"):
            yield _Wanted(f"blk.{il}.ffn_{part}_exps.{suffix}", (hp.n_expert,), "MUL_MAT_ID", il, optional=True)
        if il >= hp.n_layer:
            yield _Wanted(f"blk.{il}.nextn.eh_proj.{suffix}", (1,), "MUL_MAT", il, optional=True)
            yield _Wanted(f"blk.{il}.nextn.shared_head_head.{suffix}", (1,), "MUL_MAT", il, optional=True)
