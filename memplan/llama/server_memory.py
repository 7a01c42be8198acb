"""What llama-server keeps in the host's memory beside its buffers: outputs, context checkpoints, the prompt cache.

Follows tools/server/server-context.cpp (``create_checkpoint``), server-task.cpp (``server_prompt_cache``) and
src/llama-context.cpp (``output_reserve``), v0.5.0. These are upper limits: nothing of it but the outputs is there when
llama-server starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.llama.batch import ContextParams
from memplan.llama.flags import Flags
from memplan.llama.hparams import HParams

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


def server_memory(hp: HParams, flags: Flags, params: ContextParams, checkpoint: int) -> ServerMemory:
    """What llama-server with these flags may come to keep; llama-cli keeps the outputs alone.

    ``checkpoint``: bytes of one context checkpoint (``Architecture.checkpoint``).
    """
    server = flags.app == "server"
    outputs = max(params.n_seq_max, flags.n_outputs_max if server else 1) * hp.n_vocab * 4
    if not server:
        return ServerMemory(outputs)
    kept = flags.n_parallel * max(flags.ctx_checkpoints, 0)
    prompts = None if flags.cache_ram < 0 else flags.cache_ram * MIB
    return ServerMemory(outputs, checkpoint, kept * checkpoint, prompts)
