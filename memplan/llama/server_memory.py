"""What llama-server keeps in the host's memory beside its buffers: outputs, context checkpoints, the prompt cache.

Follows tools/server/server-context.cpp (``create_checkpoint``), server-task.cpp (``server_prompt_cache``),
src/llama-kv-cache-dsv4.cpp (``state_write``) and src/llama-context.cpp (``output_reserve``), v0.5.0. These are upper
limits: nothing of it but the outputs is there when llama-server starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.llama.context import ContextParams
from memplan.llama.flags import Flags
from memplan.llama.hparams import HParams
from memplan.llama.kv_cache import Memory

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Bytes at most. ``prompt_cache`` is None without a limit (``--cache-ram -1``)."""

    outputs: int = 0
    """Logits that a batch hands back, pinned where there is a GPU."""
    checkpoint: int = 0
    """One context checkpoint: what of the caches cannot be rolled back."""
    checkpoints: int = 0
    """All that the slots may keep (``--ctx-checkpoints``)."""
    prompt_cache: int | None = 0
    """Prompts of earlier conversations (``--cache-ram``)."""

    @property
    def most(self) -> int | None:
        """All of it at most; None without a limit."""
        return None if self.prompt_cache is None else self.outputs + self.checkpoints + self.prompt_cache


NO_SERVER = ServerMemory()
"""Nothing at all: llama.cpp does not start."""


def server_memory(hp: HParams, flags: Flags, params: ContextParams, memory: Memory) -> ServerMemory:
    """What llama-server with these flags may come to keep; llama-cli keeps the outputs alone."""
    server = flags.app == "server"
    outputs = max(params.n_seq_max, flags.n_outputs_max if server else 1) * hp.n_vocab * 4
    if not server:
        return ServerMemory(outputs)
    checkpoint = _checkpoint(hp, flags, params, memory)
    kept = flags.n_parallel * max(flags.ctx_checkpoints, 0)
    prompts = None if flags.cache_ram < 0 else flags.cache_ram * MIB
    return ServerMemory(outputs, checkpoint, kept * checkpoint, prompts)


def _checkpoint(hp: HParams, flags: Flags, params: ContextParams, memory: Memory) -> int:
    """One slot's raw keys within the window, and one snapshot of its compressors' states."""
    cells = min(hp.n_swa, params.n_ctx_seq)
    raw = sum(tensor.type.row_size(tensor.ne[0]) for tensor in memory.raw.k.values()) * cells
    states = 0
    for state in (memory.csa_state, memory.hca_state, memory.lid_state):
        rows = len(state.kv) + len(state.score)
        states += rows * state.n_embd_state * state.state_size * 4
    return raw + states
