from __future__ import annotations

import re
from dataclasses import replace

import pytest

from memplan.backends.devices import Rig
from memplan.llama.server_memory import ServerMemory
from memplan.notes import settings_notes
from memplan.output.table import render_table
from memplan.result import BufferUse
from tests.estimates import BUFFERS, MIB, REFUSAL, RIG, TOO_MUCH, made_up

EIGHTY = """\
flash.gguf: 284.3 B parameters, 82,697 MiB (deepseek4)
llama-server v0.5.0: 1 slot of 131,072 tokens, batch 2048/512

MiB                 weights context compute   total   free    left  used
────────────────────────────────────────────────────────────────────────────────
CUDA0  RTX 3090      20,111     900   2,184  24,268 23,868     673  ██████████▓▒
CUDA1  RTX 5060 Ti   14,000     300   1,195  16,311 15,900     405  ███████████▒
CUDA2  RTX PRO 6000  47,000     300     195  97,886 97,000  49,505  ██████░░░░░░
host                  1,015       3      33 131,072        130,021
█ weights  ▓ context  ▒ compute  ░ left of what is free

fits: 405 MiB left on CUDA1, the least of 3 GPUs
- host memory: 1,051 MiB
- not included: the CUDA context and the code of kernels (see --reserve), the
  scratch of kernels on the CPU, for which there is no rule
"""


def test_the_whole_table_at_80_columns() -> None:
    assert render_table(made_up(), width=80) == EIGHTY


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 120, 200])
def test_no_line_is_wider_than_asked_and_no_figure_is_cut(width: int) -> None:
    estimate = made_up(buffers=TOO_MUCH)
    text = render_table(replace(estimate, notes=settings_notes(estimate)), width=width)
    if width >= 60:
        assert max(map(len, text.splitlines())) <= width
    for figure in ("20,111", "2,184", "24,268", "23,868", "49,505", "-595", "130,021"):
        assert figure in text


def test_the_bars_show_at_120_columns() -> None:
    line = next(line for line in render_table(made_up(), width=120).splitlines() if line.startswith("CUDA2"))
    assert re.search("█+░+$", line)
    assert "RTX PRO 6000 " in line


def test_plain_without_unicode_or_colour_and_coloured_with() -> None:
    plain = render_table(made_up(), width=80, unicode=False)
    assert plain.isascii()
    assert "\x1b" not in plain
    coloured = render_table(made_up(), width=80, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_table(made_up(), width=80)


def test_what_does_not_fit_is_named_with_what_is_missing() -> None:
    text = render_table(made_up(buffers=TOO_MUCH), width=80)
    assert "does not fit: CUDA1 is 595 MiB short\n" in text
    almost = {**BUFFERS, "CUDA0": BufferUse(23868 * MIB, 0, 1)}
    assert "does not fit: CUDA0 is 1 MiB short\n" in render_table(made_up(buffers=almost), width=80)


def test_the_host_can_be_too_small() -> None:
    estimate = made_up(rig=Rig(RIG.gpus, 1000 * MIB))
    assert not estimate.fits
    assert "the host is 51 MiB short" in render_table(estimate)


def test_no_gpu() -> None:
    text = render_table(made_up(rig=Rig(())), width=80)
    assert "needs 8 MiB of the host's memory" in text
    assert "CUDA" not in text


def test_a_refusal_shows_kind_words_and_mend_and_no_table() -> None:
    text = render_table(made_up(refused=REFUSAL), width=80)
    assert "refuses to start with these settings: k v types differ" in text
    assert REFUSAL.message in text
    assert f"to fix it: {REFUSAL.fix}" in text
    assert "weights" not in text
    assert "aborts" in render_table(made_up(refused=replace(REFUSAL, outcome="abort")))


def test_what_is_not_exact_or_not_included_is_said() -> None:
    text = render_table(replace(made_up("-c 4096 --mmproj p.gguf"), approximate="a guess"), width=120)
    assert "not exact: a guess" in text
    assert "there is no rule, the projector and" in text


def test_a_hostile_model_name_stays_text() -> None:
    estimate = made_up()
    hostile = replace(estimate.model, path="/a/[red]x[red].gguf\n\x1b[31m y")
    text = render_table(replace(estimate, model=hostile), width=120)
    assert text.startswith("[red]x[red].gguf [31m y: ")
    assert "\x1b" not in text


def test_a_plain_sum_of_what_the_machine_must_have() -> None:
    found = made_up()
    kept = ServerMemory(0, MIB, 9 * MIB, 8192 * MIB)
    mapped = replace(found, host=replace(found.host, mapped=1015 * MIB, total=None), server=kept)
    said = " ".join(render_table(mapped, width=200).split())
    assert "host memory: 36 MiB, and 1,015 of weights as pages of the file (--load-mode)" in said
    assert "at work up to 9 of context checkpoints (--ctx-checkpoints) and up to 8,192 of prompt cache" in said
    assert "(--cache-ram): 9,252 in all" in said
    endless = replace(mapped, server=ServerMemory(0, MIB, 0, None))
    assert "at work a prompt cache without limit (--cache-ram -1)" in " ".join(render_table(endless).split())
    copying = replace(found, host=replace(found.host, loading=256 * MIB))
    assert "host memory: 1,271 MiB (copies to GPUs hold 256 while loading)" in render_table(copying, width=200)
