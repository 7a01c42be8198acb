from __future__ import annotations

import csv
import io
import json

import pytest

from memplan.output.sweep import (
    render_sweep,
    sweep_csv,
    sweep_json,
)
from tests.estimates import REFUSAL
from tests.output.pictures import GIB, RIG, in_proportion, swept


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sweep = swept(monkeypatch, ["ctx=4096,1048576", "np=1,2"])
    lines = render_sweep(sweep, ["-cmoe"]).splitlines()
    assert lines[1] == "llama-server v0.5.0 -cmoe: MiB"
    assert lines[3].split() == ["ctx", "np", "CUDA0", "left", "CUDA1", "left", "host", "used"]
    assert lines[5].split() == ["4,096", "1", "17,344", "17,280", "0", "fits"]
    assert lines[8].split()[:2] == ["1,048,576", "2"]
    assert lines[8].endswith("short: CUDA0 15,360, CUDA1 48,128")
    assert lines[-3:] == [
        "2 of 4 fit",
        "the context is that of all slots together: each has its part",
        "not included: the CUDA context and the code of kernels (see --reserve)",
    ]


def test_many_gpus_share_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sweep = swept(monkeypatch, ["ctx=4096,1048576"], rig=type(RIG)(RIG.gpus * 4))
    text = render_sweep(sweep, unicode=False)
    assert text.isascii()
    assert "least left  on" in text
    assert "CUDA7" in text
    assert "and 6 more" in text


def test_refusals_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sweep = swept(monkeypatch, ["ctx=4096,8192"], lambda d, c, n: None if c == 4096 else 0)
    text = render_sweep(sweep)
    assert "refused: k v types differ" in text
    assert f"k v types differ: {REFUSAL.message}; {REFUSAL.fix}" in text
    assert "\x1b[" in render_sweep(sweep, colour=True)


def test_csv_holds_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    over = ["np=1,2", "ctx=4096,8192"]
    _, sweep = swept(monkeypatch, over, lambda d, c, n: None if n == 2 else in_proportion(d, c, n))
    rows = list(csv.DictReader(io.StringIO(sweep_csv(sweep))))
    assert len(rows) == 4
    assert rows[1]["np"] == "1" and rows[1]["ctx"] == "8192"
    assert int(rows[1]["CUDA1 context"]) == in_proportion(1, 8192, 1)
    assert int(rows[1]["CUDA1 left"]) == 22 * GIB - 5 * GIB - in_proportion(1, 8192, 1)
    assert (rows[1]["fits"], rows[1]["refused"]) == ("true", "")
    assert (rows[2]["CUDA0 model"], rows[2]["fits"], rows[2]["refused"]) == ("", "false", "k-v-types-differ")


def test_json_holds_every_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sweep = swept(monkeypatch, ["np=1,2", "ctx=4096,8192"])
    found = json.loads(sweep_json(sweep))
    assert [axis["values"] for axis in found["axes"]] == [[1, 2], [4096, 8192]]
    assert [point["values"] for point in found["points"]][1] == {"np": 1, "ctx": 8192}
    assert found["points"][1]["estimate"]["devices"][1]["context"] == in_proportion(1, 8192, 1)
