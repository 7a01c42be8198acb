"""Made-up estimates for tests of what is done with them."""

from __future__ import annotations

from dataclasses import replace

from memplan.backends.devices import Gpu, Rig
from memplan.llama.flags import Flags, parse_flags
from memplan.llama.refusals import Refusal
from memplan.result import BufferUse, Estimate, ModelSummary, device_uses, host_use

MIB = 1 << 20
MODEL = ModelSummary("DeepSeek-V4-Flash", "deepseek4", "flash.gguf", 82697 * MIB, 284_300_000_000, own_streams=True)
RIG = Rig(
    (
        Gpu("NVIDIA GeForce RTX 3090", 24268 * MIB, 23868 * MIB, (8, 6)),
        Gpu("NVIDIA GeForce RTX 5060 Ti", 16311 * MIB, 15900 * MIB, (12, 0)),
        Gpu("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97886 * MIB, 97000 * MIB, (12, 0)),
    ),
    131072 * MIB,
)
BUFFERS = {
    "CUDA0": BufferUse(20111 * MIB, 900 * MIB, 2184 * MIB),
    "CUDA1": BufferUse(14000 * MIB, 300 * MIB, 1195 * MIB),
    "CUDA2": BufferUse(47000 * MIB, 300 * MIB, 195 * MIB),
    "CUDA_Host": BufferUse(1010 * MIB, 0, 33 * MIB),
    "CPU": BufferUse(5 * MIB, 3 * MIB, 0),
}
TOO_MUCH = {**BUFFERS, "CUDA1": BufferUse(15000 * MIB, 300 * MIB, 1195 * MIB)}
REFUSAL = Refusal(
    "k-v-types-differ",
    "refused",
    "does not support different K (q8_0) and V (f16) cache types",
    "give -ctk and -ctv the same type",
)


def made_up(
    flags: Flags | str = "-c 131072 -np 1",
    rig: Rig = RIG,
    buffers: dict[str, BufferUse] | None = None,
    refused: Refusal | None = None,
) -> Estimate:
    """An estimate whose figures are in proportion, but nobody's."""
    if isinstance(flags, str):
        flags = parse_flags(flags.split())
    buffers = dict(BUFFERS) if buffers is None else buffers
    names = {f"CUDA{i}" for i in range(len(rig.gpus))} | ({"CUDA_Host"} if rig.gpus else set())
    buffers = {name: use for name, use in buffers.items() if name in names or not name.startswith("CUDA")}
    if refused:
        buffers = {}
    estimate = Estimate(
        model=MODEL,
        llama="v0.5.0",
        flags=flags,
        n_ctx=flags.n_ctx or 1048576,
        n_ctx_seq=flags.n_ctx or 1048576,
        buffers=buffers,
        devices=device_uses(buffers, rig),
        host=host_use(buffers, rig),
        nodes=(8349, 8349),
        splits=(3, 3),
        refused=refused,
    )
    return replace(estimate, n_ctx_seq=estimate.n_ctx if flags.kv_unified else estimate.n_ctx // flags.n_parallel)
