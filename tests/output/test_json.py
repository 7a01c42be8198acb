from __future__ import annotations

import json
from dataclasses import replace

from memplan.output.json import estimate_object, render_json
from tests.estimates import MIB, REFUSAL, made_up


def test_the_object_has_the_contracts_keys() -> None:
    answer = json.loads(render_json(made_up()))
    assert list(answer) == [
        "model", "llama", "app", "n_ctx", "n_ctx_seq", "buffers", "draft", "run_time", "filled", "devices", "host",
        "fits", "starts", "tight", "short_at", "run_time_not_modelled", "server", "graph",
        "disabled", "pipeline_parallel", "exact", "notes", "refused", "draft_refused",
    ]  # fmt: skip
    assert answer["buffers"]["CUDA0"] == {"model": 20111 * MIB, "context": 900 * MIB, "compute": 2184 * MIB}
    assert list(answer["devices"][0]) == [
        "name", "description", "total", "free", "model", "context", "compute", "draft", "projector", "run_time",
        "reserve", "left",
    ]  # fmt: skip
    assert answer["devices"][0]["left"] == (23868 - 20111 - 900 - 2184) * MIB
    assert answer["draft"] is None
    assert answer["host"] == {
        "model": 1015 * MIB, "context": 3 * MIB, "compute": 33 * MIB, "draft": 0, "projector": 0,
        "total": 131072 * MIB, "short": 0, "mapped": 0, "pinned": 0, "loading": 0,
        "least": 1051 * MIB, "most": 1051 * MIB,
    }  # fmt: skip
    assert answer["graph"] == {"nodes": [8349, 8349], "splits": [3, 3]}
    assert (answer["llama"], answer["app"], answer["exact"], answer["refused"]) == ("v0.5.0", "server", True, None)


def test_a_refusal_and_a_reason_for_being_inexact() -> None:
    answer = estimate_object(replace(made_up(refused=REFUSAL), approximate="so it is", notes=("a note",)))
    assert answer["refused"] == {"kind": REFUSAL.kind, "how": REFUSAL.outcome, "said": REFUSAL.message}
    assert answer["buffers"] == {}
    assert answer["exact"] is False
    assert answer["notes"] == ["not exact: so it is", "a note"]


def test_sizes_are_whole_bytes() -> None:
    def check(value: object) -> None:
        assert not isinstance(value, float)
        if isinstance(value, dict):
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)

    check(json.loads(render_json(made_up())))
