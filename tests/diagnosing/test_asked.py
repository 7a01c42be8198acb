"""What a user adds to a log, and flags and GPUs that it shows only by what they do."""

from __future__ import annotations

import inspect
import re
from itertools import pairwise
from typing import Any

import pytest

from memplan.diagnosing import answers as answers_module
from memplan.diagnosing.diagnosis import diagnose, diagnose_all
from memplan.diagnosing.flags_seen import seen_flags
from memplan.diagnosing.guessing import layer_bytes, split_of
from memplan.diagnosing.meanings import SAID
from memplan.diagnosing.result import Given
from memplan.diagnosing.rigs import other_gpus, rig_of
from memplan.errors import FlagError, UnknownRelease
from memplan.estimator import answer
from memplan.llama.refusals import OTHER, abort_of
from memplan.models.builtin import builtin_header
from memplan.rig import parse_gpus
from tests.diagnosing.logs import (
    GOOD,
    LOGS,
    MIB,
    diagnosis,
    loads,
    text,
)

pytestmark = pytest.mark.slow


def test_a_log_that_shows_next_to_nothing() -> None:
    last = "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 433158272"
    (load,) = loads(last)
    bare = diagnose(load)
    assert bare.cause.kind == "too-little-memory" and bare.estimate is None and bare.notes
    rig = parse_gpus(["RTX PRO 6000:97886:82000"])
    full = diagnose(load, Given(builtin_header("deepseek-v4-flash"), ("-c", "131072", "-np", "1"), rig, "v0.5.0"))
    assert full.cause.kind == "too-little-memory" and full.agrees and full.mends
    with pytest.raises(UnknownRelease):
        diagnose(load, Given(llama="b1"))
    with pytest.raises(FlagError):
        diagnose(load, Given(builtin_header("deepseek-v4-flash"), ("-ot", "exps=CUDA9"), rig))


def test_without_a_prediction_the_logs_own_figures_tell() -> None:
    log = text("r4-unfused-512000").replace("q2_K:   43", "q2_K:   44").replace("build 9988", "build 4000")
    found = diagnose(loads(log)[0])
    assert found.estimate is None and found.cause.kind == "unfused-indexer"
    found = diagnose(loads(text("r31-four-slots").replace("q2_K:   43", "q2_K:   44"))[0])
    assert found.estimate is None and found.cause.kind == "slots"


def test_another_model_than_the_logs_is_said() -> None:
    found = diagnose(loads(GOOD)[0], Given(builtin_header("deepseek-v4-flash:mxfp4")))
    assert any("other tensors" in note for note in found.notes) and not found.agrees


def test_no_flags_are_recommended_for_another_model_than_the_logs() -> None:
    (load,) = loads(text("r31-four-slots"))
    own, other = diagnosis("r31-four-slots"), diagnose(load, Given(builtin_header("deepseek-v4-flash:mxfp4")))
    assert own.mends and own.cause.kind == other.cause.kind == "slots"
    assert not other.mends
    assert any("no flags are recommended" in note for note in other.notes)


def test_every_kind_of_cause_is_explained_in_the_docs() -> None:
    from memplan.diagnosing import causes, meanings, verdict

    page = (LOGS.parents[2] / "docs" / "diagnose.md").read_text(encoding="utf-8")
    source = inspect.getsource(causes) + inspect.getsource(meanings) + inspect.getsource(verdict)
    kinds = {meaning.kind for meaning in meanings.SAID.values()} | set(re.findall(r'Cause\(\s*"([a-z-]+)"', source))
    assert len(kinds) >= 19
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()
    rows = {row.split("|")[1].strip(" `"): row for row in page.splitlines() if row.startswith("| `")}
    since = {meaning.kind: meaning.since for meaning in meanings.SAID.values() if meaning.since is not None}
    assert len(since) == 3
    for kind, mended in since.items():
        assert meanings.newer_release(mended, None).removeprefix("llama.cpp ") in rows[kind]


def test_words_mean_in_a_log_what_they_mean_in_a_refusal() -> None:
    kinds = {words: (abort_of(words).kind, meaning.kind) for words, meaning in SAID.items()}
    refused = {words: pair for words, pair in kinds.items() if pair[0] != OTHER}
    assert len(refused) == 3
    assert all(predicted == logged for predicted, logged in refused.values())


# --- flags that a log shows only by what they do ---


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"CUDA0 KV buffer": "CPU KV buffer", "CUDA0 DSV4": "CPU DSV4"}, ("-nkvo",)),
        ({"SWA KV cache, size = 768 cells": "SWA KV cache, size = 131072 cells"}, ("--swa-full",)),
        (
            {"  Device 0:": "  Device 1: A6000, compute capability 8.6, VMM: yes\n  Device 0:"},
            ("-sm", "none", "-mg", "0"),
        ),
    ],
)
def test_flags_seen_by_what_they_do(changes: dict[str, str], flags: tuple[str, ...]) -> None:
    log = GOOD
    for old, new in changes.items():
        assert old in log
        log = log.replace(old, new)
    argv = seen_flags(loads(log)[0], ()).argv
    assert any(argv[i : i + len(flags)] == flags for i in range(len(argv))), argv
    assert flags[0] not in seen_flags(loads(GOOD)[0], ()).argv


def test_flags_given_twice_are_the_users_each_once() -> None:
    (load,) = loads("$ llama-server -m m.gguf -ncmoe 24 -ub 512 -ot a=CPU --host h\n" + GOOD)
    given = ("--n-cpu-moe", "28", "-c", "4096", "-c", "8192", "-ot", "b=CPU", "-ot", "c=CPU")
    argv = seen_flags(load, given).argv
    assert argv[-8:] == ("--n-cpu-moe", "28", "-c", "8192", "-ot", "b=CPU", "-ot", "c=CPU")
    assert "-ncmoe" not in argv and (argv.count("-c"), argv.count("-ub"), argv.count("-ot")) == (1, 1, 3)


def test_overridden_tensors_become_short_patterns_for_exactly_these() -> None:
    (load,) = loads(GOOD)
    layers = [f"blk.{layer}.ffn_{kind}_exps.weight" for layer in (7, 21, 22) for kind in ("up", "down", "gate")]
    moved = [*layers, "blk.20.ffn_down_exps.weight", "output.weight"]
    load.overridden = dict.fromkeys(moved, "CPU")
    argv = seen_flags(load, ()).argv
    rules = [word for flag, word in pairwise(argv) if flag == "-ot"]
    assert rules == [
        r"^blk\.(7|21|22)\.(ffn_down_exps\.weight|ffn_gate_exps\.weight|ffn_up_exps\.weight)$=CPU",
        r"^blk\.20\.ffn_down_exps\.weight$=CPU",
        r"^output\.weight$=CPU",
    ]
    held = [re.compile(rule.removesuffix("=CPU")) for rule in rules]
    names = builtin_header("deepseek-v4-flash").tensors
    assert {name for name in names if any(pattern.search(name) for pattern in held)} == set(moved)


def test_a_split_is_found_by_the_weights() -> None:
    (load,) = loads(text("good-b10068-crlf").replace("-cmoe", ""))
    header = builtin_header("deepseek-v4-flash:q3")
    # 20 layers without experts, then 10 more, 5, and the rest with the output layer
    sizes = [size - experts for size, experts in layer_bytes(header)]
    ends = (0, 20, 30, 35, 43)
    output = header.tensors["output.weight"].nbytes + header.tensors["output_norm.weight"].nbytes
    for i in range(4):
        load.model[f"CUDA{i}"] = (sum(sizes[ends[i] : ends[i + 1]]) + output * (i == 3)) / MIB
    assert split_of(load, layer_bytes(header), ["-cmoe"]) == ["-ts", "20,10,5,9"]
    load.model["CUDA1"] += 7
    assert split_of(load, layer_bytes(header), ["-cmoe"]) is None


@pytest.mark.parametrize(
    ("gpus", "differs"),
    [
        pytest.param(["8*RTX 3090"], "", marks=pytest.mark.thorough),
        (["8*RTX 3090:24268:23868"], ""),
        pytest.param(["8*my card:24268:23868:8.6"], "", marks=pytest.mark.thorough),
        pytest.param(["RTX 3090"], "the log has 8 GPUs (NVIDIA GeForce RTX 3090)", marks=pytest.mark.thorough),
        ([], "the log has 8 GPUs"),
        (["8*RTX 5090"], "in the log CUDA0 is NVIDIA GeForce RTX 3090, not NVIDIA GeForce RTX 5090"),
        (["8*my card:48000:47000:8.6"], "not my card"),
        (["7*RTX 3090", "RTX 3060"], "in the log CUDA7 is"),
    ],
)
def test_gpus_that_cannot_be_the_logs_are_known(gpus: list[str], differs: str) -> None:
    (load,) = loads(text("r8-one-card-short"))
    found = other_gpus(load, parse_gpus(gpus))
    assert differs in found and bool(found) == bool(differs)


@pytest.mark.parametrize("gpus", ["RTX 3090", "8*RTX 3090"])
def test_in_place_of_gpus_that_cannot_be_meant_the_logs_are_taken(gpus: str) -> None:
    (load,) = loads(text("r8-one-card-short"))
    found = diagnose(load, Given(rig=parse_gpus([gpus])))
    assert found.agrees
    notes = [note for note in found.notes if "are not the log's" in note]
    assert len(notes) == (gpus == "RTX 3090")
    if notes:
        assert "the log has 8 GPUs" in notes[0] and notes[0].endswith("the log's are taken")
        assert found.cause == diagnosis("r8-one-card-short").cause


@pytest.mark.thorough
def test_loads_that_differ_in_free_memory_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = answer

    def counted(*words: Any) -> Any:
        asked.append(words)
        return real(*words)

    monkeypatch.setattr(answers_module, "answer", counted)
    log = text("r8-one-card-short")
    free = re.search(r"using device CUDA4 .* - (\d+) MiB free", log)  # the card that is short
    assert free is not None
    logs = [log, *(log.replace(free[0], free[0].replace(free[1], str(int(free[1]) - less))) for less in (1, 2, 300))]
    found = diagnose_all(loads("".join(logs)))
    shared = len(asked)
    alone = [diagnosis("r8-one-card-short"), diagnose(found[3].load)]
    assert 0 < shared <= 2 * (len(asked) - shared)
    assert [(each.cause, each.mends, each.notes, each.estimate) for each in (found[0], found[3])] == [
        (each.cause, each.mends, each.notes, each.estimate) for each in alone
    ]
    assert "714 MiB short" in found[3].cause.text


def test_a_machine_without_a_gpu() -> None:
    log = "\n".join(line for line in GOOD.splitlines() if "CUDA" not in line and "Device 0" not in line)
    rig = rig_of(loads(log + "\nload_tensors:   CPU_Mapped model buffer size = 82697.65 MiB\n")[0])
    assert rig is not None and rig.gpus == ()


def test_a_log_without_a_release_takes_so_many_estimates_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses take half of what is done for a log, so that the rest is left for what mends it."""
    lines = [line for line in text("r8-one-card-short").splitlines() if "print_info: build" not in line]
    log = re.sub(r"CUDA4 buffer of size \d+", "CUDA4 buffer of size 3147480000", "\n".join(lines))
    (load,) = loads(log)
    assert load.build is None
    monkeypatch.setattr(answers_module, "MOST", 6)
    answers = answers_module.Answers()
    found = diagnose(load, answers=answers)
    assert found.estimate is not None and found.release == "v0.5.0" and 0 < answers.spent <= 6 * 33_800
    assert not any("estimates" in note for note in found.notes)
    answers = answers_module.Answers()
    monkeypatch.setattr(answers_module, "MOST_NODES", 1)
    found = diagnose(load, answers=answers)
    assert found.cause.kind in ("one-gpu-short", "too-little-memory") and not found.mends
    monkeypatch.setattr(answers_module, "MOST", 0)
    found = diagnose(load, answers=answers_module.Answers())
    assert found.estimate is None and any("more estimates than" in note for note in found.notes)


def test_where_weights_lie_is_tried_so_often_for_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each load of a log takes the guesses that the ones after it left, and says where there were none."""
    log = re.sub(
        r"CUDA0 model buffer size = .*",
        "CUDA0 model buffer size = 12345.67 MiB",
        GOOD[: GOOD.index("llama_context: constructing")],
    )
    (load,) = loads(log)
    answers = answers_module.Answers()
    diagnose(load, answers=answers)
    guessed = answers.placed
    monkeypatch.setattr(answers_module, "MOST_PLACED", 2 * 1328)
    answers = answers_module.Answers()
    found = diagnose(load, answers=answers)
    assert answers.placed == 2 * 1328 < guessed
    assert any("not found by trying -ncmoe" in note for note in found.notes)
