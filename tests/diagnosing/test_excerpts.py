"""Parts of logs, beside a model that the user names: nothing that the log lacks is asked of the user."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.diagnosing import answers as answers_module
from memplan.diagnosing.diagnosis import diagnose
from memplan.diagnosing.result import Given
from memplan.errors import FlagError
from memplan.models.builtin import builtin_header, header_of
from memplan.models.catalogue import MODELS
from tests.diagnosing.logs import GOOD, loads

MODEL = Given(builtin_header("deepseek-v4-flash"), ("-m", "deepseek-v4-flash"))


def test_a_device_that_the_excerpt_does_not_show() -> None:
    line = "tensor blk.3.ffn_up_exps.weight (1152 MiB q4_K) buffer type overridden to CUDA7\n"
    at = GOOD.index("load_tensors:")
    (load,) = loads(GOOD[:at] + line + GOOD[at:])
    found = diagnose(load, MODEL)
    assert found.estimate is None
    assert any("no such buffer type" in note for note in found.notes)
    with pytest.raises(FlagError, match="no such buffer type"):
        diagnose(load, replace(MODEL, flags=("-ot", "exps=CUDA9")))


def test_a_compute_capability_that_is_none() -> None:
    log = GOOD.replace("compute capability 8.6", "compute capability 0.0").replace(
        "compute capability 12.0", "compute capability 0.0"
    )
    assert "capability 0.0" in log
    (load,) = loads(log)
    diagnose(load, MODEL)


@pytest.mark.slow
def test_hundreds_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates end with the nodes that are allowed; the cause and what was found so far are said."""
    model = MODELS["deepseek-v4-flash"]
    keys = {key: (v * 12)[:300] if isinstance(v, tuple) else v for key, v in model.keys.items()}
    header = header_of(replace(model, keys={**keys, "block_count": 300}), model.recipes[model.default], "deep")
    (load,) = loads(GOOD[: GOOD.index("llama_context: constructing")])
    load.types, load.metadata = {}, {}
    load.model = {"CUDA0": 200_000.0}
    monkeypatch.setattr(answers_module, "MOST_NODES", 100_000)
    answers = answers_module.Answers()
    found = diagnose(load, Given(header, ("-m", "deep.gguf")), answers)
    assert found.cause.kind == "too-little-memory" and found.estimate is not None
    assert 100_000 < answers.spent <= 100_000 + max(found.estimate.nodes)


def test_a_tail_is_not_taken_for_the_whole() -> None:
    lines = GOOD.splitlines(keepends=True)
    begins = next(i for i, line in enumerate(lines) if "loaded meta data" in line)
    for tail in (lines[begins + 1 :], lines[-40:]):
        found = diagnose(loads("".join(tail))[0])
        assert found.cause.text == "nothing wrong in this part of the log: every buffer that it shows was allocated"
        assert found.notes[0].startswith("the log begins in the middle of the load: what came before is not known")
    whole = diagnose(loads(GOOD)[0])
    assert whole.cause.text == "nothing wrong: every buffer was allocated"
    assert not any("middle" in note for note in whole.notes)


def test_a_failure_on_a_gpu_that_the_given_ones_lack() -> None:
    lines = "CUDA error: out of memory\n  current device: 4, in function alloc at x.cu:1\n"
    (load,) = loads(GOOD + lines)
    found = diagnose(load, MODEL)
    assert found.cause.kind == "run-time-pools" and {mend.where for mend in found.mends} <= {"CUDA0"}
