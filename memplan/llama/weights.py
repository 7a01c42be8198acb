"""The weights that llama.cpp asks a file for: names, shapes, and the op that each is used with.

Follows src/llama-model.cpp (``load_tensors``: optional scales), src/llama-arch.cpp (names, ``LLM_TENSOR_INFOS``) and
src/llama-model-loader.cpp (``check_tensor_dims``, ``create_tensor``, ``done_getting_tensors``), v0.5.0; v0.4.0 asks in
the same way. Which weights a model has is said by its architecture (``load_arch_tensors``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import prod

from memplan.backends.weights import StateSpace
from memplan.errors import BadTensorShape, MissingTensor
from memplan.ggml.tensor import Shape
from memplan.gguf.header import Header, TensorInfo, names_file
from memplan.gguf.types import GGMLType
from memplan.llama.hparams import HParams
from memplan.llama.keys import CONVERT
from memplan.llama.refusals import REFUSED, Refusal

Have = Mapping[str, TensorInfo]
"""The tensors of a file, by name."""

INPUT = -1
"""``ModelTensor.layer`` of the input layer, always on the host."""

OUTPUT = -2
"""``ModelTensor.layer`` of the output layer."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """One weight as it is loaded.

    ``ne``: extents as the graph sees them, whatever the file says.  ``op``: the op that decides which buffer types can
    hold it.  ``layer``: its block, or INPUT, or OUTPUT.  ``nbytes``: bytes of data.  ``role``: what the graph asks for
    it by; its name, but for what is loaded once more (the embedding as the output) or for several blocks.  ``ssm``: as
    ``Wanted`` has it.  ``duplicated``: it is the one of its name that lies in the same buffer type, if there is one.
    ``lazy``: its rows may be read as they are needed, in plain memory.
    """

    name: str
    type: GGMLType
    ne: Shape
    op: str
    layer: int
    nbytes: int
    role: str
    ssm: StateSpace | None = None
    duplicated: bool = False
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The weights in the order they are created, and what llama.cpp says of the file.

    ``skipped``: names that are in the file and not loaded (MTP blocks).  ``refusal``: set when the file holds
    tensors that this release does not ask for.
    """

    tensors: tuple[ModelTensor, ...]
    skipped: tuple[str, ...]
    refusal: Refusal | None

    def by_role(self) -> Mapping[str, ModelTensor]:
        """The same weights, by what the graph asks for them by."""
        return {t.role: t for t in self.tensors}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the loader asks for: a name (``blk.0.attn_q.weight``), a shape, and how strictly.

    ``optional``: TENSOR_NOT_REQUIRED.  ``reshape``: only the number of elements must agree.  ``skip``: TENSOR_SKIP,
    counted and not loaded.  ``duplicated``: TENSOR_DUPLICATED, loaded once more where it does not lie already.
    ``op``: where it is not the one that its name stands for.  ``role``, ``layer``: where the name does not say so, what
    the graph asks for it by, and for which block.
    """

    name: str
    shape: tuple[int, ...]
    optional: bool = False
    reshape: bool = False
    skip: bool = False
    duplicated: bool = False
    lazy: bool = False
    """TENSOR_READ_LAZY: its rows may be read as they are needed, in plain memory."""
    op: str = ""
    role: str = ""
    layer: int | None = None
    ssm: StateSpace | None = None
    """The sizes that decide where the decays of a state space may lie (SSM_SCAN)."""
    stored: tuple[int, ...] = ()
    """The shape that files have, where the one that is asked for is made of it (``reshape``)."""

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The shape in a file."""
        return self.stored or self.shape


_OPS: Mapping[str, str] = {
    "token_embd": "GET_ROWS", "per_layer_token_embd": "GET_ROWS", "ffn_gate_tid2eid": "GET_ROWS",
    "nextn.embed_tokens": "GET_ROWS", "attn_compressor_ape": "GET_ROWS", "indexer_compressor_ape": "GET_ROWS",
    "rope_freqs": "ROPE", "rope_factors_long": "ROPE", "rope_factors_short": "ROPE",
    "attn_sinks": "SCALE", "exp_probs_b": "ADD", "exp_probs_b_vl": "ADD",
    "output_hc_base": "ADD", "output_hc_scale": "MUL", "hc_attn_base": "ADD", "hc_attn_scale": "MUL",
    "hc_ffn_base": "ADD", "hc_ffn_scale": "MUL", "layer_output_scale": "MUL",
    "nextn.enorm": "MUL", "nextn.hnorm": "MUL",
    "ssm_conv1d": "SSM_CONV", "ssm_a": "SSM_SCAN", "ssm_d": "MUL",
    "ssm_conv1d_q": "MUL", "ssm_conv1d_k": "MUL", "ssm_conv1d_v": "MUL",
}  # fmt: skip
"""Ops of weights by kind (``LLM_TENSOR_INFOS``); experts go with MUL_MAT_ID, norms with MUL, the rest with MUL_MAT."""

_OUTPUT_KINDS = frozenset({"output", "output_norm", "output_hc_fn", "output_hc_base", "output_hc_scale"})
_INPUT_KINDS = frozenset({"token_embd", "per_layer_token_embd"})
_NORM = re.compile(r"norm(_[12])?$")
_NAME = re.compile(r"(?:blk\.([0-9]+)\.)?(.*?)(?:\.(weight|bias|scale|input_scale))?$")


@lru_cache(maxsize=8192)
def parts_of(name: str) -> tuple[int | None, str, str]:
    """Block, kind and suffix of a weight's name: 3, ``attn_q``, ``weight``; no block for what has none."""
    found = _NAME.fullmatch(name)
    assert found is not None  # the pattern takes any text
    block, kind, suffix = found.groups()
    return (None if block is None else int(block)), kind, suffix or ""


def op_of(kind: str, suffix: str = "weight") -> str:
    """The op that decides where a weight of this kind may lie (``create_tensor``)."""
    op = _OPS.get(kind) or ("MUL_MAT_ID" if kind.endswith("_exps") else "MUL" if _NORM.search(kind) else "MUL_MAT")
    if suffix == "bias":
        return "ADD_ID" if op == "MUL_MAT_ID" else "ADD"
    return op


def layer_of(name: str) -> int:
    """The layer that a weight belongs to: its block, INPUT or OUTPUT (``LLM_TENSOR_INFOS``)."""
    block, kind, _ = parts_of(name)
    if block is not None:
        return block
    return INPUT if kind in _INPUT_KINDS else OUTPUT if kind in _OUTPUT_KINDS else 0


@names_file
def load_tensors(header: Header, hp: HParams, wanted: Iterable[Wanted], mtp_only: bool = False) -> ModelTensors:
    """The weights that are loaded from ``header`` when its architecture asks for those ``wanted``, in order.

    ``mtp_only``: the file has MTP blocks and none of the layers before them, which are optional then.
    Raises MissingTensor and BadTensorShape. Skipped blocks must be complete and of the right shape all the same.
    Counts as llama.cpp does: a skipped tensor is accounted for, an unknown one makes it refuse the file.
    """
    loaded: list[ModelTensor] = []
    skipped: list[str] = []
    again = 0
    asked: set[str] = set()
    for w in chain(wanted, _scales(hp, asked, header.tensors)):
        info = header.tensors.get(w.name)
        if info is None:
            if w.optional or (mtp_only and 0 <= layer_of(w.name) < hp.n_layer):
                continue
            raise MissingTensor(
                f"tensor {w.name} is missing; llama.cpp needs it with shape {_text(w.shape)}; {CONVERT}"
            )
        _check_shape(w, info)
        if w.skip:
            skipped.append(w.name)
            continue
        asked.add(w.name)
        again += w.duplicated
        ne = _four(w.shape if w.reshape else info.shape)
        nbytes = info.type.row_size(ne[0]) * ne[1] * ne[2] * ne[3]
        _, kind, suffix = parts_of(w.role or w.name)
        layer = layer_of(w.role or w.name) if w.layer is None else w.layer
        op, role = w.op or op_of(kind, suffix), w.role or w.name
        loaded.append(ModelTensor(w.name, info.type, ne, op, layer, nbytes, role, w.ssm, w.duplicated, w.lazy))
    return ModelTensors(tuple(loaded), tuple(skipped), _count(len(header.tensors), len(loaded) - again + len(skipped)))


def _count(expected: int, got: int) -> Refusal | None:
    if expected == got:
        return None
    return Refusal(
        "tensors-not-of-this-release",
        REFUSED,
        f"wrong number of tensors; expected {expected}, got {got}",
        "use a llama.cpp release that knows these tensors, or a file converted for this one",
    )


def _check_shape(w: Wanted, info: TensorInfo) -> None:
    """As ``check_tensor_dims``: exactly, or by the number of elements where a reshape is allowed."""
    same = prod(info.shape) == prod(w.shape) if w.reshape else _four(info.shape) == _four(w.shape)
    # a reshaped row must still be whole blocks, or ggml's byte counts part ways and it aborts
    if same and w.reshape:
        same = w.shape[0] % info.type.block_size == 0
    if not same:
        raise BadTensorShape(
            f"tensor {w.name} has shape {_text(info.shape)}, but the hyper-parameters imply {_text(w.shape)}; {CONVERT}"
        )


def _four(shape: tuple[int, ...]) -> Shape:
    a, b, c, d = (*shape, 1, 1, 1)[:4]
    return a, b, c, d


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "attn_gate")
_DENSE = ("ffn_gate", "ffn_down", "ffn_up")
_SHARED = ("ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp")
_EXPERTS = ("ffn_gate_exps", "ffn_down_exps", "ffn_up_exps")
_OTHERS = ("ssm_in", "ssm_out", "ssm_alpha", "ssm_beta", "nextn.eh_proj", "nextn.shared_head_head")


def _scales(hp: HParams, loaded: set[str], have: Have) -> Iterator[Wanted]:
    """Scales that some quantisations keep beside a weight, asked for beside those that are ``loaded`` by then."""
    if any(name.endswith("scale") for name in have):  # few files have any
        for il in range(hp.n_layer_all):
            for suffix, order in (
                ("scale", _ATTENTION + _DENSE + _SHARED + _EXPERTS),
                ("input_scale", _ATTENTION + _DENSE + _EXPERTS + _SHARED),
            ):
                for kind in (*order, *_OTHERS):
                    name = f"blk.{il}.{kind}"
                    if f"{name}.weight" in loaded:
                        shape = (hp.n_expert if kind.endswith("_exps") else 1,)
                        yield Wanted(f"{name}.{suffix}", shape, optional=True)
    output = have.get("output.weight")
    if output is not None and output.type.name == "nvfp4":
        for suffix in ("scale", "input_scale"):
            yield Wanted(f"output.{suffix}", (1,), optional=True)


def qkv(have: Have, il: int, n_embd: int, n_q: int, n_k: int, n_v: int, skip: bool = False) -> Iterator[Wanted]:
    """Query, key and value weights of a layer, joined in one or apart, with biases if any (``create_tensor_qkv``)."""
    p = f"blk.{il}.attn_"
    joined = Wanted(f"{p}qkv.weight", (n_embd, n_q + n_k + n_v), optional=True, skip=skip)
    if skip or joined.name in have:
        yield joined
        yield Wanted(f"{p}qkv.bias", (n_q + n_k + n_v,), optional=True, skip=skip)
    if skip or joined.name not in have:
        for which, n in (("q", n_q), ("k", n_k), ("v", n_v)):
            yield Wanted(f"{p}{which}.weight", (n_embd, n), optional=skip, skip=skip)
    if skip or joined.name not in have or f"{p}qkv.bias" not in have:
        for which, n in (("q", n_q), ("k", n_k), ("v", n_v)):
            yield Wanted(f"{p}{which}.bias", (n,), optional=True, skip=skip)


def gate_up_exps(have: Have, il: int, n_embd: int, n_ff: int, n_expert: int, skip: bool = False) -> Iterator[Wanted]:
    """Experts' gates and ups, joined in one weight or apart (``create_tensor_gate_up_exps``)."""
    p = f"blk.{il}.ffn_"
    joined = Wanted(f"{p}gate_up_exps.weight", (n_embd, 2 * n_ff, n_expert), optional=True, skip=skip)
    yield joined
    if skip or joined.name not in have:
        for which in ("gate", "up"):
            yield Wanted(f"{p}{which}_exps.weight", (n_embd, n_ff, n_expert), optional=skip, skip=skip)


def head(hp: HParams, have: Have, *, tied: bool) -> Iterator[Wanted]:
    """What is of no layer: the embedding, the last norm and the output; ``tied``: the embedding may be the output."""
    yield Wanted("token_embd.weight", (hp.n_embd, hp.n_vocab))
    yield Wanted("output_norm.weight", (hp.n_embd,))
    if tied:
        yield from tied_output(have, hp.n_embd, hp.n_vocab)
    else:
        yield Wanted("output.weight", (hp.n_embd, hp.n_vocab))


def ffn(
    il: int, n_embd: int, n_ff: int, sort: str = "", n_expert: int = 0, parts: str = "gate down up",
    optional: bool = False,
) -> Iterator[Wanted]:  # fmt: skip
    """A gated feed-forward part of a layer, in the order of ``parts``.

    ``sort``: ``_exps`` for ``n_expert`` experts, ``_shexp`` for shared ones together, "" for a dense part.
    """
    experts = (n_expert,) if sort == "_exps" else ()
    for part in parts.split():
        shape = (n_ff, n_embd) if part == "down" else (n_embd, n_ff)
        yield Wanted(f"blk.{il}.ffn_{part}{sort}.weight", (*shape, *experts), optional)


def tied_output(have: Have, n_embd: int, n_vocab: int) -> Iterator[Wanted]:
    """The output weight, or the embedding loaded once more in its place (TENSOR_DUPLICATED)."""
    yield Wanted("output.weight", (n_embd, n_vocab), optional=True)
    if "output.weight" not in have:
        yield Wanted("token_embd.weight", (n_embd, n_vocab), role="output.weight", duplicated=True)


def nextn(hp: HParams, il: int) -> Iterator[Wanted]:
    """What a block for multi-token prediction has beside a layer."""
    e, v, p = hp.n_embd, hp.n_vocab, f"blk.{il}.nextn."
    yield Wanted(p + "eh_proj.weight", (2 * e, e))
    yield Wanted(p + "enorm.weight", (e,))
    yield Wanted(p + "hnorm.weight", (e,))
    yield Wanted(p + "embed_tokens.weight", (e, v), optional=True)
    yield Wanted(p + "shared_head_head.weight", (e, v), optional=True)
    yield Wanted(p + "shared_head_norm.weight", (e,), optional=True)


def rope_factors(il: int, n_rot: int, rope_scaling: str, first: int = 0) -> Iterator[Wanted]:
    """The frequency factors of rotary positions, of which a file has one set and every block from ``first`` asks."""
    longrope = rope_scaling == "longrope"
    for kind in ("rope_factors_long", "rope_factors_short") if longrope else ("rope_freqs",):
        role = f"blk.{il}.{kind}.weight"
        yield Wanted(f"{kind}.weight", (n_rot // 2,), optional=True, role=role, duplicated=il > first)
