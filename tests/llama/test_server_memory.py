from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.backends.devices import Rig
from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.llama.server_memory import ServerMemory
from memplan.models.builtin import builtin_header
from memplan.notes import settings_notes
from memplan.output.words import verdict_line
from memplan.rig import parse_gpus
from tests.estimates import MIB, RIG, made_up

MODEL = builtin_header("deepseek-v4-flash")
GPUS = parse_gpus(["RTX PRO 6000"])


def server(line: str, app: str = "server") -> ServerMemory:
    return estimate(MODEL, parse_flags(line.split(), app), GPUS).server


def test_a_checkpoint_is_the_window_and_the_compressors_states() -> None:
    window = 128 * 43 * 512 * 2  # f16 keys of 128 tokens on 43 layers
    states = 2 * 4 * (8 * 1024 * 21 + 128 * 512 * 20 + 8 * 256 * 21)
    found = server("-c 131072 -np 1")
    assert found.checkpoint == window + states
    assert found.checkpoints == 32 * found.checkpoint
    assert server("-c 131072").checkpoints == 4 * 32 * found.checkpoint
    assert server("-c 131072 -np 1 -ctk q8_0 -ctv q8_0").checkpoint == window * 34 // 64 + states


def test_flags_that_set_it() -> None:
    found = server("-c 4096 -np 2 --cache-ram 100 -ctxcp 3")
    assert (found.prompt_cache, found.checkpoints) == (100 * MIB, 6 * found.checkpoint)
    assert server("-c 4096 -np 1").prompt_cache == 8192 * MIB
    none = server("-c 4096 -np 1 -cram 0 --swa-checkpoints 0")
    assert (none.checkpoints, none.most) == (0, none.outputs)
    assert server("-c 4096 -np 1 -cram -1").most is None


def test_outputs() -> None:
    assert server("-c 4096 -np 1").outputs == 129280 * 4
    assert server("-c 4096 -np 3").outputs == 3 * 129280 * 4
    assert server("-c 4096", "cli") == ServerMemory(129280 * 4)


@pytest.mark.parametrize(
    ("flags", "memory", "said"),
    [
        ("-np 1", ServerMemory(MIB, MIB, 9 * MIB, 8192 * MIB), ""),
        ("-np 1", ServerMemory(MIB, MIB, 9 * MIB, 200_000 * MIB), "the host may run short by"),
        ("-np 1", ServerMemory(MIB, MIB, 9 * MIB, None), "the prompt cache has no limit"),
    ],
)
def test_a_host_that_is_too_small_is_said(flags: str, memory: ServerMemory, said: str) -> None:
    notes = "\n".join(settings_notes(replace(made_up(flags), server=memory)))
    assert said in notes if said else notes == ""
    assert settings_notes(replace(made_up(flags, rig=Rig(RIG.gpus)), server=memory)) == ()


def test_unified_memory_is_counted_once() -> None:
    rig = Rig(GPUS.gpus, 90_000 * MIB, unified=True)
    small = estimate(MODEL, parse_flags(["-c", "4096", "-np", "1"]), rig)
    assert small.fits and "the one memory of GPUs and host may run short by 1,812 MiB" in "\n".join(small.notes)
    large = estimate(MODEL, parse_flags(["-c", "1048576", "-np", "1"]), rig)
    assert not large.short and not large.fits and "their one memory" in verdict_line(large)
