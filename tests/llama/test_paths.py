"""Fused ops asked for or ruled out, whatever the release and the devices would do."""

from __future__ import annotations

import json

import pytest

from memplan.backends.devices import Rig
from memplan.cli import main
from memplan.errors import FlagError
from memplan.estimator import estimate
from memplan.llama.context import Path, Paths
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.result import Estimate
from memplan.rig import parse_gpus

pytestmark = pytest.mark.slow

FLASH = builtin_header("deepseek-v4-flash")
RIG = parse_gpus(["RTX PRO 6000"])
HC = ("DSV4_HC_PRE", "DSV4_HC_COMB", "DSV4_HC_POST")


def asked(
    release: str, indexer: Path = "auto", hc: Path = "auto", without: tuple[str, ...] = (), rig: Rig = RIG
) -> Estimate:
    paths = Paths().with_("indexer", indexer).with_("hyper-connections", hc)
    flags = parse_flags(["-c", "131072", "-ub", "512", "-np", "1", "-fa", "on"], "server")
    return estimate(FLASH, flags, rig, release, without, paths)


def test_ruled_out_is_what_a_probe_would_turn_off() -> None:
    forced = asked("b10068", "unfused", "unfused")
    probed = asked("b10068", without=("LIGHTNING_INDEXER", *HC))
    assert forced.nodes == probed.nodes == (33480, 33480)
    assert forced.buffers == probed.buffers
    assert (forced.disabled, len(probed.disabled)) == ((), 4)


def test_asked_for_is_kept_where_the_probe_would_turn_it_off() -> None:
    auto, fused = asked("b9988"), asked("b9988", "fused")
    assert auto.disabled == ("Lightning Indexer",) and fused.disabled == ()
    assert auto.buffers["CUDA0"].compute - fused.buffers["CUDA0"].compute > 7 << 30
    # no kernel in that release, so each of the 21 layers with an indexer leaves the GPU and comes back
    assert fused.splits[0] > 2 * 21


def test_hyper_connections_by_themselves() -> None:
    fused, unfused = asked("v0.5.0"), asked("v0.5.0", hc="unfused")
    assert fused.nodes == (8349, 8349)
    assert unfused.nodes[0] > 30000
    kept = asked("v0.5.0", hc="fused", without=HC)
    assert kept.nodes == fused.nodes and kept.disabled == () and kept.splits > fused.splits


def test_the_unfused_indexer_is_there_for_releases_that_never_take_it() -> None:
    unfused = asked("v0.5.0", "unfused")
    assert unfused.buffers["CUDA0"].compute > 8 << 30
    assert any("v0.5.0 itself never does so" in note for note in unfused.notes)


@pytest.mark.parametrize(
    ("release", "indexer", "hc", "says"),
    [
        ("b9842", "fused", "auto", "b9842 has no fused indexer"),
        ("b9988", "auto", "fused", "b9988 has no fused hyper-connections"),
    ],
)
def test_what_a_release_has_not_got_cannot_be_asked_for(release: str, indexer: Path, hc: Path, says: str) -> None:
    with pytest.raises(FlagError, match=says):
        asked(release, indexer, hc)


@pytest.mark.parametrize(
    ("words", "release", "says"),
    [
        ("", "b9842", "(blk.0.attn_output_a.weight (reshaped)) in a buffer (CUDA0_Split)"),
        ("-ngl 21", "b9842", "(blk.23.attn_output_a.weight (reshaped))"),
        ("-ot blk\\.0\\.attn_output_a=CPU", "b9842", "(blk.1.attn_output_a.weight (reshaped))"),
        ("", "b9924", "does not support split buffers"),
    ],
)
def test_no_release_starts_with_weights_spread_by_rows(words: str, release: str, says: str) -> None:
    flags = parse_flags(f"-sm row -np 1 {words}".split(), "server")
    refused = estimate(FLASH, flags, RIG, release).refused
    assert refused is not None and says in refused.message


def test_rows_that_are_spread_without_an_abort_are_not_followed() -> None:
    small = ["-np", "1", "-c", "4096"]
    flags = parse_flags([*small, "-sm", "row", "-ot", "attn_output_a=CPU"], "server")
    with pytest.raises(FlagError, match="-sm row: b9842's buffers"):
        estimate(FLASH, flags, RIG, "b9842")
    nothing_to_spread = parse_flags([*small, "-ngl", "0", "-sm", "row"], "server")
    plain = parse_flags([*small, "-ngl", "0"], "server")
    assert estimate(FLASH, nothing_to_spread, RIG, "b9842").buffers == estimate(FLASH, plain, RIG, "b9842").buffers


@pytest.mark.parametrize("option", ["--indexer", "--hyper-connections"])
def test_on_the_command_line(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["estimate", "deepseek-v4-flash", "--gpu", "RTX PRO 6000", "-np", "1", "-c", "4096", "--llama", "10068"]
    assert main([*line, option, "unfused", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    path = f"--path {option[2:]}=unfused"
    assert any(note.startswith(f"{path}: ") for note in said["notes"])
    assert main([*line, *path.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said
    assert said["graph"]["nodes"][0] > 9448
    assert main([*line, option, "perhaps"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"memplan: error: {option}: 'perhaps' is not one of 'auto', 'fused', 'unfused'; ")


def test_keys_that_a_fork_may_or_may_not_read_make_an_answer_approximate() -> None:
    def why(words: str, release: str = "lid-cuda", without: tuple[str, ...] = ()) -> str:
        flags = parse_flags(f"-c 4096 -np 1 -cmoe {words}".split(), "server")
        return estimate(FLASH, flags, RIG, release, without).approximate

    assert "not known whether lid-cuda's CUDA indexer reads f32 keys" in why("-ctk f32 -ctv f32")
    assert not why("-ctk bf16 -ctv bf16")
    assert not why("-ctk f32 -ctv f32", without=("LIGHTNING_INDEXER",))
    assert not why("-ctk f32 -ctv f32", "b9842")
