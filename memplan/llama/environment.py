"""llama-server's environment variables: the flags that ``LLAMA_ARG_*`` stand for.

Follows ``common_params_parse_ex`` and ``common_arg::get_value_from_env`` (common/arg.cpp), v0.5.0: variables are read
before the words, in the order of its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from memplan.errors import FlagError, shown
from memplan.llama.flag_fields import FIELDS
from memplan.llama.flag_table import ARITY, NUMBER, REMOVED
from memplan.llama.flag_values import OFF, ON
from memplan.llama.spelling import LOAD_MODES, LOAD_MODES_SINCE

PREFIX: Final = "LLAMA_ARG_"

_NAMED_OTHERWISE: Final = {
    "BATCH": "--batch-size",
    "UBATCH": "--ubatch-size",
    "DIO": "--direct-io",
    "N_PARALLEL": "--parallel",
    "SPEC_DRAFT_HF_REPO": "--spec-draft-hf",
    "SPEC_DRAFT_CACHE_TYPE_K": "--spec-draft-type-k",
    "SPEC_DRAFT_CACHE_TYPE_V": "--spec-draft-type-v",
    "N_GPU_LAYERS_DRAFT": "--spec-draft-ngl",
}
"""Variables that are named otherwise than their flag; all others are called as one of its spellings is."""

_VARIABLES: Final = {
    name: _NAMED_OTHERWISE.get(name, "--" + name.lower().replace("_", "-"))
    for line in (
        "CTX_SIZE KV_UNIFIED_PER_SLOT BATCH UBATCH SWA_FULL CTX_CHECKPOINTS CACHE_RAM KV_UNIFIED FLASH_ATTN",
        "BACKEND_SAMPLING POOLING KV_OFFLOAD REPACK NO_HOST CACHE_TYPE_K CACHE_TYPE_V N_PARALLEL MMPROJ MMPROJ_URL",
        "MMPROJ_OFFLOAD RPC MLOCK MMAP DIO LOAD_MODE LAZY_MODE DEVICE OVERRIDE_TENSOR CPU_MOE N_CPU_MOE N_CPU_FFN",
        "N_GPU_LAYERS SPLIT_MODE TENSOR_SPLIT MAIN_GPU FIT FIT_TARGET FIT_CTX MODEL MODEL_URL HF_REPO HF_FILE",
        "EMBEDDINGS RERANKING MODELS_PRESET OFFLINE SPEC_DRAFT_HF_REPO SPEC_DRAFT_CACHE_TYPE_K",
        "SPEC_DRAFT_CACHE_TYPE_V SPEC_DRAFT_CPU_MOE SPEC_DRAFT_N_CPU_MOE SPEC_DRAFT_N_MAX SPEC_DRAFT_N_MIN",
        "SPEC_DRAFT_BACKEND_SAMPLING N_GPU_LAYERS_DRAFT SPEC_DRAFT_MODEL SPEC_TYPE DRAFT_MAX DRAFT_MIN",
    )
    for name in line.split()
}
"""The variables whose flags decide memory, without their prefix, in arg.cpp's order, and a spelling of each flag."""

UNMODELLED: Final = ("GGML_CUDA_DEVICES", "GGML_OP_OFFLOAD_MIN_BATCH", "LLAMA_ATTN_ROT_DISABLE")
"""Other variables of llama.cpp's that decide memory, in a way that is not modelled."""


def flag_of(variable: str) -> str:
    """The flag that a variable stands for; empty for one that decides no memory, or is none of llama-server's."""
    return _VARIABLES.get(variable.removeprefix(PREFIX), "") if variable.startswith(PREFIX) else ""


def environment_flags(environment: Mapping[str, str], build: int) -> tuple[list[str], list[str]]:
    """The words that the variables stand for to a build, in the order in which it reads them, and what to say of it.

    A flag without a value counts when its variable is on, enabled, true or 1; ``LLAMA_ARG_NO_X`` counts by being there.
    Raises FlagError for a value that llama-server would not take for a variable of the kind.
    """
    words: list[str] = []
    notes: list[str] = []
    read = []
    for name, flag in _VARIABLES.items():
        variable, negative = f"{PREFIX}{name}", f"--no-{flag[2:]}"
        value = environment.get(variable)
        if negative in ARITY and f"{PREFIX}NO_{name}" in environment:
            variable, value = f"{PREFIX}NO_{name}", "0"
        if value is None:
            continue
        if flag in LOAD_MODES and build >= LOAD_MODES_SINCE:
            mode = LOAD_MODES[negative if negative in ARITY and value in OFF else flag]
            notes.append(f"{variable} is not read by llama.cpp any more: give the flag, -lm {mode}")
            continue
        before = len(words)
        if ARITY.get(flag) or flag in REMOVED:
            if flag in NUMBER and not value.strip():
                raise FlagError(f"{variable} is set to nothing, which llama-server does not take: unset it")
            words += [flag, value]
        elif negative in ARITY and value not in (*ON, *OFF):
            raise FlagError(f"{variable}={shown(value)}: must be one of {', '.join((*ON, *OFF))}")
        elif value in ON:
            words.append(flag)
        elif negative in ARITY:
            words.append(negative)
        if len(words) > before:
            read.append(f"{variable}={environment[variable]}"[:80])
    if read:
        notes.insert(0, f"read as llama-server reads its environment: {', '.join(read)}")
    for variable in environment:
        name = variable.removeprefix(PREFIX)
        flag = "--" + name.lower().replace("_", "-")
        if variable.startswith(PREFIX) and name not in _VARIABLES and flag in FIELDS:
            known = next((other for other, named in _VARIABLES.items() if FIELDS.get(named) == FIELDS[flag]), "")
            if known and not name.startswith("NO_"):
                notes.append(f"{variable} is no variable of llama-server's, which does not read it: {PREFIX}{known} is")
    return words, notes
