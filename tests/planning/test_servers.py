"""Plans for rigs with RPC servers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from memplan.backends.devices import Rig
from memplan.cli import main
from memplan.output.fit import fit_ini, fit_json, no_fit_text
from memplan.output.plan import no_plan_text, plan_args, plan_ini, plan_object, plan_script, plan_table
from memplan.planning.fit import fit_preset
from memplan.planning.layout import Layout
from memplan.planning.partition import LayerPartitioner
from memplan.planning.plan import NoPlan, Plan, make_plan
from memplan.planning.speed import NETWORK_MS, SPLIT_MS, find_bandwidths
from memplan.rig import MIB, parse_gpus
from memplan.rig_file import parse_rig, write_rig
from tests.planning.rigs import made_up, problem

GPUS = ("RTX 3090", "rpc:h:1:48000:47000", "rpc:i:1:48000:47000")
SERVERS = "h:1,i:1"


@cache
def planned(flags: str = "-c 65536 -np 1") -> Plan | NoPlan:
    return make_plan(problem(flags, GPUS))


def test_every_format_names_the_servers_before_their_devices() -> None:
    plan = planned("-c 65536 -np 1 -dev RPC0,RPC1,CUDA0")
    assert isinstance(plan, Plan)
    assert plan.estimate.flags.rpc == ("h:1", "i:1")
    assert plan_args(plan).startswith(f"--rpc {SERVERS} ")
    script = plan_script(plan, None)
    assert script.index(f"--rpc {SERVERS}") < script.index("-dev RPC0")
    assert f"\nrpc = {SERVERS}\n" in plan_ini(plan, None, "m")
    assert plan_object(plan)["args"][:2] == ["--rpc", SERVERS]
    assert f"add: --rpc {SERVERS} -ngl" in plan_table(plan)
    assert any("before -dev" in note for note in plan.notes)


def test_an_estimate_says_what_its_line_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "estimate",
        "deepseek-v4-flash",
        *(word for gpu in GPUS for word in ("--gpu", gpu)),
        "-c",
        "65536",
        "-np",
        "1",
    ]
    assert main([*line, "-ts", "1,0,0"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"only with --rpc {SERVERS}, ahead of -dev and -ot: add it" in out
    assert f"another placement; add: --rpc {SERVERS} -ngl" in out
    assert main([*line, "--rpc", "h:1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the rig's RPC server i:1 is not in --rpc" in out
    assert "add it" not in out


def test_servers_that_are_given_are_not_given_again() -> None:
    plan = planned(f"-c 65536 -np 1 --rpc {SERVERS}")
    assert isinstance(plan, Plan)
    assert "--rpc" not in plan.args
    assert plan_args(plan).count("--rpc") == 1
    assert plan.args == planned().args[2:]  # type: ignore[union-attr]


@pytest.mark.thorough
@pytest.mark.slow
def test_changes_that_fit_name_the_servers() -> None:
    plan = make_plan(problem("-c 1048576 -np 1 -ts 1,1", ("RTX 3060", "rpc:h:1:9000:8600")))
    assert isinstance(plan, NoPlan)
    assert {change.change.split()[0] for change in plan.nearest} >= {"-c", "without"}
    assert all(change.args[:2] == ("--rpc", "h:1") for change in plan.nearest)
    assert "not exact: RPC" in no_plan_text(plan)
    found = plan_object(plan)
    assert found["exact"] is False
    assert any(note.startswith("not exact: RPC") for note in found["notes"])


def test_a_model_larger_than_all_memory_is_said_to_be() -> None:
    plan = make_plan(problem(gpus=("RTX 3090", "rpc:h:1:24000:23000"), host=16000))
    assert isinstance(plan, NoPlan)
    assert "more than the host's 16,000 MiB and the 46,868 MiB that are free on all GPUs" in plan.why
    assert plan.nearest == ()
    rig = Rig(parse_gpus(["M2 Ultra:70000"]).gpus, 80000 * MIB, unified=True)
    of = problem(gpus=["M2 Ultra:70000"])
    mac = make_plan(replace(of, question=of.question.with_(rig=rig)))
    assert isinstance(mac, NoPlan)
    assert "more than the host's 80,000 MiB: " in mac.why  # one memory is counted once


def test_a_plan_of_an_exact_rig_says_nothing_of_it() -> None:
    plan = make_plan(problem(host=1000))
    assert isinstance(plan, NoPlan)
    assert "not exact" not in no_plan_text(plan)
    assert plan_object(plan)["exact"] is True


@pytest.mark.parametrize(("gpu", "name"), [("M2 Ultra", "Metal"), ("rpc:h:1:90000", "RPC"), ("Strix Halo", "Vulkan")])
def test_margins_for_fit_say_what_is_not_known(gpu: str, name: str) -> None:
    preset = fit_preset(problem(gpus=[gpu], margin=0))
    for text in (fit_ini(preset), " ".join(json.loads(fit_json(preset))["warnings"])):
        assert f"not exact: {name}" in text
    assert f"that of {name} is not known" in preset.reasons[0]
    assert (preset.args[:2] == ("--rpc", "h:1")) == (name == "RPC")
    assert json.loads(fit_json(preset))["exact"] is False


def test_margins_that_nothing_fits_with_say_so_too() -> None:
    preset = fit_preset(problem(gpus=["rpc:h:1:90000"], release="10700"), growth=90000)
    assert isinstance(preset.plan, NoPlan)
    assert "not exact: RPC" in no_fit_text(preset)
    assert "10700" in preset.approximate


def test_a_servers_card_gives_memory_and_bandwidth() -> None:
    text = '[[gpus]]\nname = "{}"\nrpc = "h:1"\n'
    cuda = parse_rig(text.format("RTX 3090"), json=False)
    other = parse_rig(text.format("RX 7900 XTX"), json=False)
    assert [rig.gpus[0].total // MIB for rig in (cuda, other)] == [24268, 24560]
    assert [find_bandwidths(rig.gpus).gpus for rig in (cuda, other)] == [(936,), (960,)]
    assert not any("not known" in line for line in find_bandwidths(cuda.gpus).assumed)
    for rig in (cuda, other):
        assert parse_rig(write_rig(rig, json=False), json=False) == rig
        assert rig.gpus[0].description == "h:1"


def test_a_network_costs_more_than_a_change_of_device() -> None:
    rig = Rig(parse_gpus(["rpc:h:1:1000", "rpc:h:1:1000", "RTX 3090"]).gpus)
    speeds = find_bandwidths(rig.gpus)
    assert any(f"{NETWORK_MS} ms where that is over a network" in line for line in speeds.assumed)
    assert not any("network" in line for line in find_bandwidths(parse_gpus(["RTX 3090"]).gpus).assumed)
    partitioner = LayerPartitioner(made_up([1] * 4, [[1]] * 3 + [[]], 3), speeds)
    far = Layout(0, (1, 3, 4), host=frozenset({"blk.0.ffn_down_exps.weight"}))
    assert list(partitioner.changes(far)) == [NETWORK_MS] * 5
    assert list(partitioner.changes(Layout(0, (0, 0, 4), host=far.host))) == [SPLIT_MS] * 3
