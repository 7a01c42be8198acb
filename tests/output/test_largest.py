from __future__ import annotations

import csv
import io
import json

import pytest

from memplan.output.largest import Hunt, LargestRow, largest_csv, largest_json, render_largest
from memplan.sweeping.axes import parse_axis
from memplan.sweeping.largest import largest_of
from tests.output.pictures import GIB, swept


def test_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeper, _ = swept(monkeypatch, ["np=1", "ctx=4096"])
    np, ctx = parse_axis("np=1,4"), parse_axis("ctx=4096:1048576:4096")
    sweeper = type(sweeper)(sweeper.question, [np, ctx])
    values = tuple(value for value in ctx.values if isinstance(value, int))
    rows = [LargestRow((n,), largest_of(sweeper, ctx, values, (n,))) for n in (1, 4)]
    hunt = Hunt(ctx, (np,))
    text = render_largest(hunt, rows, ["-cmoe"])
    lines = text.splitlines()
    assert lines[3].split()[:3] == ["np", "largest", "ctx"]
    last = (17 * GIB // (16384 * 8)) // 4096 * 4096
    assert lines[6].split()[:4] == ["4", f"{last:,}", lines[6].split()[2], "CUDA1"]
    assert f"{last + 4096:,} is short: CUDA1" in lines[6]
    assert "found by bisection" in lines[8]
    assert "not included: the CUDA context and the code of kernels" in lines[-1]
    table = list(csv.DictReader(io.StringIO(largest_csv(hunt, rows))))
    assert (table[1]["largest ctx"], table[1]["on"], table[1]["next"]) == (str(last), "CUDA1", str(last + 4096))
    assert int(table[1]["next left"]) < 0 <= int(table[1]["least left"])
    found = json.loads(largest_json(hunt, rows))
    assert (found["axis"], found["bound"], found["margin"]) == ("ctx", "largest", 0)
    assert found["found"][1]["value"] == last
    assert found["found"][1]["beyond"]["value"] == last + 4096
    assert found["found"][1]["estimate"]["n_ctx"] == last


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeper, _ = swept(monkeypatch, ["ctx=4096,8192"], lambda *_: 100 * GIB)
    row = LargestRow((), largest_of(sweeper, sweeper.axes[0], (4096, 8192), ()))
    hunt = Hunt(sweeper.axes[0], ())
    text = render_largest(hunt, [row])
    assert "none  " in text and "4,096 is short: CUDA0 " in text and "memplan plan finds a placement" in text
    assert largest_csv(hunt, [row]).splitlines()[1].startswith(",,,4096,-")


def test_the_smallest_and_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up models need more the longer the context; here the smallest is looked for all the same."""
    sweeper, _ = swept(monkeypatch, ["ctx=4096"], lambda device, ctx, np: (40 - ctx) * GIB)
    axis = parse_axis("ctx=0:60:1")
    sweeper = type(sweeper)(sweeper.question, [axis])
    values = tuple(int(value) for value in axis.values)[::-1]
    exact = largest_of(sweeper, axis, values, ())
    roomy = largest_of(sweeper, axis, values, (), 2 * GIB)
    assert exact.value is not None and roomy.value == exact.value + 2
    text = render_largest(Hunt(axis, (), "smallest", 2 * GIB), [LargestRow((), roomy)])
    assert "2,048 MiB to be left on every GPU" in text
    assert f"{exact.value + 1:,} leaves " in text


def test_where_the_values_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeper, _ = swept(monkeypatch, ["ctx=4096"])
    ctx, np = parse_axis("ctx=4096"), parse_axis("np=1")
    for axis, word, asked, said in (
        (ctx, "largest", True, "nothing larger was asked"),
        (ctx, "smallest", True, "nothing smaller was asked"),
        (ctx, "largest", False, "all that the model has"),
        (np, "largest", False, "the most that is tried"),
        (ctx, "smallest", False, "there is no less"),
    ):
        found = largest_of(type(sweeper)(sweeper.question, [ctx]), ctx, (4096,), ())
        text = render_largest(Hunt(axis, (), word, 0, asked), [LargestRow((), found)])
        assert said in text
        assert "1 estimate\n" in text
