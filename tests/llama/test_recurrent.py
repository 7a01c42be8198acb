"""Recurrent states by hand: cells, snapshots, and what of them a checkpoint holds."""

from __future__ import annotations

from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.result import Estimate
from memplan.rig import parse_gpus

GPUS = parse_gpus(["RTX PRO 6000"])
STATE = 24 * 4 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096)
"""Qwen3.5-9B: of 32 layers 24 recur; a convolution's last 3 tokens and a state of 128 rows, both of f32."""
CACHE = 8 * 2 * 2 * 4 * 256
"""A token's keys and values on the other 8 layers: 4 heads of 256, f16."""


def found(line: str, model: str = "qwen3.5-9b", release: str = "v0.5.0") -> Estimate:
    return estimate(builtin_header(model), parse_flags(line.split()), GPUS, release)


def test_one_cell_a_slot_however_long_its_context() -> None:
    for ctx in (8192, 65536):
        for slots in (1, 4):
            context = found(f"-c {ctx} -np {slots} -kvu").buffers["CUDA0"].context
            assert context == CACHE * ctx + STATE * slots


def test_snapshots_for_what_is_drafted() -> None:
    drafts = "--spec-type draft-mtp --spec-draft-n-max 3"
    assert found(f"-c 8192 -np 2 {drafts}").buffers["CUDA0"].context == CACHE * 8192 + STATE * 2 * 4


def test_models_that_cannot_roll_back_have_no_snapshots() -> None:
    for model, release in (("qwen3-next-80b-a3b", "v0.5.0"), ("nemotron-nano-9b-v2", "b10361")):
        plain, drafted = (
            found(f"-c 8192 -np 2 {flags}", model, release).buffers["CUDA0"].context
            for flags in ("", "--spec-type draft-mtp")
        )
        assert plain == drafted
    plain, drafted = (
        found(f"-c 8192 -np 1 {flags}", "nemotron-nano-9b-v2").buffers["CUDA0"].context
        for flags in ("", "--spec-type draft-mtp")
    )
    states = 27 * 4 * (3 * (10240 + 2 * 8 * 128) + 128 * 10240)
    assert drafted - plain == 3 * states


def test_a_checkpoint_is_one_sequence_s_states() -> None:
    server = found("-c 8192 -np 2").server
    assert (server.checkpoint, server.checkpoints) == (STATE, 2 * 32 * STATE)


def test_states_on_the_host() -> None:
    buffers = found("-c 8192 -np 1 -nkvo").buffers
    assert (buffers["CUDA0"].context, buffers["CPU"].context) == (0, CACHE * 8192 + STATE)
