"""What llama.cpp refuses once the model is known and before anything is reserved, and what it settles by itself.

Follows src/llama-context.cpp (``llama_init_from_model``, ``llama_context::llama_context``, ``output_reserve``), v0.5.0;
releases from b9842 on do the same but for what their switches say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from memplan.errors import FlagError
from memplan.gguf.types import BY_NAME
from memplan.llama.batch import ContextParams
from memplan.llama.placement import overridden
from memplan.llama.refusals import ABORT, OTHER, REFUSED, Refusal, died
from memplan.llama.weights import OUTPUT, ModelTensor
from memplan.releases import Release

if TYPE_CHECKING:
    from memplan.gguf.header import Header
    from memplan.llama.flags import Flags
    from memplan.llama.hparams import HParams
    from memplan.llama.placement import Device, Placement

MAX_SEQ = 256
"""LLAMA_MAX_SEQ."""

_NEEDS_FLASH_ATTN = ("V cache quantization requires flash_attn", "quantized V cache requires flash_attn")
"""llama.cpp's words, before and since it also compares K and V types."""


ROW_ROUNDING = 128
"""Rows that a weight is cut in at least, when it is spread over devices (``get_row_rounding``)."""


def check_split_rows(
    tensors: Sequence[ModelTensor], flags: Flags, placement: Placement, totals: Mapping[Device, int], release: Release
) -> Refusal | None:
    """The abort of ``-sm row`` in a release that has it: a weight spread over devices cannot be reshaped.

    ``attn_output_a`` is, in every layer; the first on a GPU is the one that is named. ``totals``: memory of each CUDA
    device, by which rows are shared out without ``-ts``; other backends spread nothing. Follows ggml-cuda.cu
    (``ggml_backend_cuda_device_supports_op``, ``get_row_split``) and ggml-backend.cpp
    (``ggml_backend_sched_backend_id_from_cur``), b9842.

    Raises FlagError where other weights alone would be spread, which is not modelled.
    """
    given = [*flags.tensor_split, *(0.0,) * len(totals)][: len(totals)]
    shares = given if any(given) else list(totals.values())
    share = {device: part / sum(shares) for device, part in zip(totals, shares, strict=True)}
    own = {t.name for t in tensors}.difference(overridden(tensors, flags))
    spread = False
    for t in tensors:
        device = placement.output if t.layer == OUTPUT else placement.cpu if t.layer < 0 else placement.layers[t.layer]
        if t.op == "MUL_MAT" and t.name in own and device in share and placement.tensors[t.role] is device.buft:
            spread = True
            if t.name.endswith(".attn_output_a.weight") and t.ne[1] * share[device] >= ROW_ROUNDING:
                said = f"pre-allocated tensor ({t.name} (reshaped)) in a buffer ({device.name}_Split) that cannot run"
                return Refusal(OTHER, ABORT, f"{said} the operation (RESHAPE)", "give -sm layer")
    if spread:
        raise FlagError(f"-sm row: {release.name}'s buffers that spread over devices are not modelled; give -sm layer")
    return None


def check_context(hp: HParams, flags: Flags, release: Release, one_cache_type: bool = False) -> Refusal | None:
    """Why llama.cpp makes no context of this model with these flags, checked in its own order; None if it does.

    ``one_cache_type``: whether the architecture wants K and V caches of one type.
    """
    type_k, type_v = BY_NAME[flags.type_k], BY_NAME[flags.type_v]
    if flags.n_batch == 0 and flags.n_ubatch == 0:
        return _other("n_batch and n_ubatch cannot both be zero", "give -b a number above 0")
    if flags.n_ctx == 0 and hp.n_ctx_train == 0:
        return _other("n_ctx and model->hparams.n_ctx_train cannot both be zero", "give -c")
    if one_cache_type and release.equal_cache_types and type_k is not type_v:
        return Refusal(
            "k-v-types-differ",
            REFUSED,
            f"does not support different K ({type_k}) and V ({type_v}) cache types",
            f"give both: -ctk {type_k} -ctv {type_k}",
        )
    if type_v.is_quantized and flags.flash_attn == "off":
        return Refusal(
            "quantized-v-needs-flash-attention",
            REFUSED,
            _NEEDS_FLASH_ATTN[release.equal_cache_types],
            "leave -fa at auto or on, or take an unquantised cache type",
        )
    if flags.flash_attn != "off":
        for letter, kind, size_of in (("K", type_k, hp.n_embd_head_k), ("V", type_v, hp.n_embd_head_v)):
            odd = [size for il in range(hp.n_layer) if (size := size_of(il)) % kind.block_size]
            if kind.is_quantized and odd:
                size, name = odd[0], f"n_embd_head_{letter.lower()}"
                return _other(
                    f"{letter} cache type {kind} with block size {kind.block_size} does not divide {name}={size}",
                    "take a cache type with smaller blocks",
                )
    if flags.n_parallel > MAX_SEQ:
        return _other(f"n_seq_max must be <= {MAX_SEQ}", f"give -np at most {MAX_SEQ}")
    params = ContextParams.of(flags, hp)
    if params.n_seq_max > (params.n_outputs_max or params.n_batch):
        return Refusal(
            OTHER,
            ABORT,
            "GGML_ASSERT(n_outputs_max <= cparams.n_outputs_max) failed",
            f"let a batch hold a token of every slot: -b and -c at least {params.n_seq_max}",
        )
    return None


def check_last_reserve(params: ContextParams, flags: Flags) -> Refusal | None:
    """Why a reserve of one sequence aborts: slots among which its tokens cannot be shared out evenly.

    None if it does not. (llama-context.cpp: ``sched_reserve``; llama-graph.cpp: ``build_attn_mha``.)
    """
    if flags.kv_unified or params.n_tokens % params.n_seq_max == 0:
        return None
    fix = f"give -kvu, -np 1, or a -ub that {params.n_seq_max} divides"
    return Refusal(OTHER, ABORT, "GGML_ASSERT(ggml_can_repeat(b, a)) failed", fix)


_EMPTY_TENSORS_SINCE = 10605
"""The first build seen that reads tensors without elements; 10362 did not."""


def check_shapes(header: Header, release: Release) -> Refusal | None:
    """The crash of older builds at a tensor without elements: they divide by its sizes (gguf.cpp); None without one."""
    if release.build < _EMPTY_TENSORS_SINCE and any(0 in t.shape[1:] for t in header.tensors.values()):
        return Refusal(OTHER, ABORT, "Floating point exception", f"take llama.cpp b{_EMPTY_TENSORS_SINCE} or newer")
    return None


def check_load(hp: HParams, release: Release, since: int, before: str = "") -> Refusal | None:
    """Why llama.cpp does not load these hyper-parameters (``load_arch``, ``load_hparams``); None if it does.

    ``since``: the first build that knows the architecture.  ``before``: what older ones say, if not just that.
    """
    if release.build < since:
        said, fix = before or f"unknown model architecture: '{hp.arch}'", f"take llama.cpp b{since} or newer"
        return Refusal("architecture-not-of-this-release", REFUSED, said, fix)
    if max(hp.n_expert_used) > hp.n_expert:
        used = "n_expert_used_max" if release.experts_used_by_layer else "hparams.n_expert_used"
        return died(f"{used} <= hparams.n_expert")
    return None


def check_flash_attn(flags: Flags, fused: frozenset[str]) -> Refusal | None:
    """Why a context is given up once it knows which ops are ``fused``; None if it is not."""
    if "FLASH_ATTN" in fused or not BY_NAME[flags.type_v].is_quantized:
        return None
    return Refusal(
        "quantized-v-needs-flash-attention",
        REFUSED,
        "quantized V cache was requested, but this requires Flash Attention",
        "take an unquantised cache type",
    )


def flash_attn(flags: Flags, release: Release) -> Literal["auto", "on", "off"]:
    """``-fa`` as the context takes it: a quantised cache may turn ``auto`` into ``on``, which is not probed."""
    settled = release.equal_cache_types and flags.flash_attn == "auto" and BY_NAME[flags.type_v].is_quantized
    return "on" if settled else flags.flash_attn


def _other(said: str, mend: str) -> Refusal:
    return Refusal(OTHER, REFUSED, said, mend)
