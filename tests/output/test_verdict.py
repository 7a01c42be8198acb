"""The line that says whether it fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.llama.refusals import OTHER, REFUSED, Refusal
from memplan.models.open import open_model
from memplan.output.explain import render_explanation
from memplan.output.sweep import closing_notes, least_cells, verdict_cell
from memplan.output.table import render_table
from memplan.output.words import settings_line, verdict_line
from memplan.result import BufferUse
from memplan.rig import parse_gpus
from tests.estimates import BUFFERS, MIB, REFUSAL, RIG, TOO_MUCH, made_up

ON_HOST = {**BUFFERS, "CPU": BufferUse(75000 * MIB, 0, 0)}
UNKNOWN_HOST = replace(RIG, host_total=None)
WORDS = Refusal(OTHER, REFUSED, "vector::_M_range_check", "free some memory")


def test_the_least_of_the_gpus_in_use() -> None:
    assert verdict_line(made_up()) == "fits: 405 MiB left on CUDA1, the least of 3 GPUs"
    one = made_up(buffers={"CUDA2": BUFFERS["CUDA2"], "CPU": BUFFERS["CPU"]})
    assert verdict_line(one) == "fits: 49,505 MiB left on CUDA2 (2 more not used)"
    assert [str(cell if isinstance(cell, str) else cell[0]) for cell in least_cells(one)] == ["49,505", "CUDA2"]


def test_no_gpu_in_use() -> None:
    none = made_up("-np 1 -dev none", buffers={"CPU": BufferUse(80000 * MIB, 0, 0)})
    assert verdict_line(none) == "needs 80,000 MiB of the host's memory; no GPU is used"


def test_a_host_that_nobody_told_the_size_of() -> None:
    much = made_up(rig=UNKNOWN_HOST, buffers=ON_HOST)
    assert verdict_line(much).endswith("; the host needs 76,043 MiB (not checked)")
    assert "not checked" not in verdict_line(made_up(buffers=ON_HOST))  # its size is known
    assert "not checked" not in verdict_line(made_up(rig=UNKNOWN_HOST))  # next to nothing lies there
    uncounted = "not included: the CUDA context and the code of kernels (see --reserve)"
    assert closing_notes([much, made_up()]) == [
        "not checked: the host, which needs up to 76,043 MiB; --host-mib says what it has",
        uncounted,
    ]
    assert closing_notes([made_up(buffers=ON_HOST), made_up(rig=UNKNOWN_HOST)]) == [uncounted]


def test_what_does_not_fit() -> None:
    assert verdict_line(made_up(buffers=TOO_MUCH)).startswith("does not fit: CUDA1 is 595 MiB short")
    small = made_up(rig=replace(RIG, host_total=1000 * MIB))
    assert "the host is 51 MiB short" in verdict_line(small)
    assert "starts" not in verdict_line(made_up(rig=replace(RIG, host_total=30 * MIB)))  # its buffers are no pages
    pages = made_up(rig=replace(RIG, host_total=70000 * MIB), buffers=ON_HOST)
    assert not pages.fits and verdict_line(pages).startswith("does not fit: the host is 6,043 MiB short; as")
    assert "starts all the same and reads from the disk" in verdict_line(pages)
    for flags in ("--load-mode none", "--mlock"):
        read = made_up(flags, rig=replace(RIG, host_total=70000 * MIB), buffers=ON_HOST)
        assert verdict_line(read) == "does not fit: the host is 6,043 MiB short"
    repacked = {**ON_HOST, "CPU": BUFFERS["CPU"], "CPU_REPACK": BufferUse(75000 * MIB, 0, 0)}
    assert "starts" not in verdict_line(made_up(rig=replace(RIG, host_total=70000 * MIB), buffers=repacked))
    unified = made_up(rig=replace(RIG, host_total=20000 * MIB))
    assert "their one memory" in verdict_line(replace(unified, unified=True))


def test_cells_of_tables_say_what_comes_at_run_time() -> None:
    fine = made_up()
    d = fine.devices[1]
    assert verdict_cell(replace(fine, devices=(replace(d, reserve=500 * MIB),))) == ("fits, but is tight", "yellow")
    dies = replace(fine, devices=(replace(d, run_time=415 * MIB),))
    assert verdict_cell(dies) == ("starts, then short: CUDA1 10", "red")
    assert verdict_cell(made_up(buffers=TOO_MUCH)) == ("short: CUDA1 595", "red")
    unknown = replace(fine, unmodelled=("Vulkan0",), devices=(replace(d, name="Vulkan0"),))
    assert verdict_cell(unknown) == ("fits, but for run time", "green")
    assert verdict_line(unknown) == "fits, but for run time, which is not modelled there: 405 MiB left on Vulkan0"
    full = replace(unknown, devices=(replace(d, name="Vulkan0", reserve=1024 * MIB),))
    assert verdict_cell(full) == ("fits, but for run time and is tight", "yellow")
    assert "not modelled there; it is tight, with less left than 1,024 MiB (--reserve): 405 MiB" in verdict_line(full)
    assert closing_notes([unknown]) == [
        "not included: what the GPU's driver keeps for itself, the scratch of kernels on Vulkan0, for which there is no"
        " rule"
    ]


@pytest.mark.parametrize(("refused", "said"), [(REFUSAL, "k v types differ"), (WORDS, "vector::_M_range_check")])
def test_a_refusal_without_a_name_is_told_in_llama_cpps_words(refused: Refusal, said: str) -> None:
    estimate = made_up(refused=refused)
    assert verdict_line(estimate) == f"llama.cpp refuses to start with these settings: {said}"
    assert verdict_cell(estimate)[0] == f"refused: {said}"
    text = render_table(estimate)
    assert text.count(refused.message.split()[0]) == 1
    assert "settings: other" not in text


def test_the_batch_is_the_one_that_llama_cpp_takes() -> None:
    asked = made_up("-np 1 -b 9000 -ub 99999999")
    assert settings_line(replace(asked, n_batch=4096, n_ubatch=4096)).endswith("batch 4096/4096")


def test_an_explanation_says_it_first() -> None:
    from memplan.explaining.result import Explanation

    lines = render_explanation(Explanation(made_up())).splitlines()
    assert lines[2] == "fits: 405 MiB left on CUDA1, the least of 3 GPUs"


def test_a_build_between_releases_is_said_once() -> None:
    flags = parse_flags(["-c", "512", "-np", "1"])
    found = estimate(open_model("deepseek-v4-flash"), flags, parse_gpus(["RTX PRO 6000"]), "b99999")
    text = " ".join(render_table(found).split())
    assert text.count("newer than any modelled release") == 1
    assert not found.exact


def test_a_ubatch_larger_than_the_batch() -> None:
    flags = parse_flags(["-c", "512", "-np", "1", "-ub", "99999999"])
    found = estimate(open_model("deepseek-v4-flash"), flags, parse_gpus(["RTX PRO 6000"]))
    assert settings_line(found).endswith("batch 512/512")
