"""The schemas under docs/ are those of what is printed, and accept nothing else."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memplan.cli import main
from memplan.cli.devices import devices_object
from memplan.machine.detected import Found, detected
from scripts.schemas import FOLDER, SCHEMAS, written
from tests.cli.test_verify import fit_params
from tests.estimates import MIB

pytestmark = pytest.mark.slow

TOP = Path(__file__).parent.parent
LOGS = TOP / "tests" / "data" / "logs"
TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
TYPES["number"] = (int, float)


def faults(value: Any, schema: dict[str, Any], where: str = "", root: dict[str, Any] | None = None) -> Iterator[str]:
    """What is wrong with ``value``, by the parts of JSON Schema that are used here."""
    root = root or schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if all(list(faults(value, choice, where, root)) for choice in schema["anyOf"]):
            yield f"{where}: {value!r} is none of {len(schema['anyOf'])} choices"
        return
    kind = schema.get("type")
    if kind == "null":
        if value is not None:
            yield f"{where}: not null"
        return
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        yield f"{where}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{where}: {value} is too small"
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{where}: {len(value)} entries"
        for i, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), f"{where}[{i}]", root)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, item in value.items():
            other = schema.get("additionalProperties", {})
            if name not in properties and other is False:
                yield f"{where}.{name} is not in the schema"
            else:
                yield from faults(item, properties.get(name, other), f"{where}.{name}", root)


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return found


def printed(capsys: pytest.CaptureFixture[str], *line: str) -> Any:
    assert main([*line, "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", SCHEMAS)
def test_files_are_as_scripts_schemas_writes_them(name: str) -> None:
    assert (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8") == written(name)


def test_there_are_no_others() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.schema.json" for name in SCHEMAS}


@pytest.mark.parametrize(
    "line",
    [
        "deepseek-v4-flash --gpu RTX_PRO_6000 -c 8192 -np 1",
        "deepseek-v4-flash --gpu 2*RTX_3090 -c 8192 -cram -1",
        "deepseek-v4-flash --gpu RTX_3090 -ctk q8_0 -ctv f16",
        "deepseek-v4-flash --no-gpu -c 4096 --llama b11250",
    ],
)
def test_estimates(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.replace("_", " ") if "RTX" in word else word for word in line.split()]
    assert list(faults(printed(capsys, "estimate", *words), schema("estimate"))) == []


def test_plans(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "plan", "deepseek-v4-flash", "--gpu", "RTX PRO 6000", "-c", "8192", "-np", "1")
    assert list(faults(found, schema("plan"))) == []


def test_diagnoses(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ([], ["-ctk", "q8_0"]):
        found = printed(capsys, "diagnose", str(LOGS / "good-v0.5.0.log"), *line)
        assert list(faults(found, schema("diagnosis"))) == []


@pytest.mark.skipif(sys.platform == "win32", reason="shell scripts stand in for llama.cpp's programs")
def test_verifications(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = ("verify", "deepseek-v4-flash", "-c", "8192", "-np", "1", "--program", fit_params(tmp_path))
    assert list(faults(printed(capsys, *line), schema("verification"))) == []


def test_sweeps_and_explanations(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("deepseek-v4-flash", "--gpu", "RTX 3090", "-cmoe")
    varied = ("--over", "ctx=4096", "--over", "cache=f16,q8_0")
    for name, line in (
        ("sweep", ("sweep", *asked, *varied)),
        ("largest", ("sweep", *asked, *varied, "--max", "ctx")),
        ("explanation", ("explain", *asked, "-c", "4096")),
        ("explanation", ("explain", *asked, "-c", "4096", "-ctk", "q8_0")),
        ("run_time", ("explain", *asked, "-c", "4096", "--run-time")),
        ("run_time", ("explain", *asked, "-c", "4096", "-ctk", "q8_0", "--run-time")),
    ):
        assert list(faults(printed(capsys, *line), schema(name))) == []


def test_slots_paths_and_comparisons(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.sweeping.largest.CELL_PADDING", 1 << 18)
    asked = ("deepseek-v4-flash", "--gpu", "RTX 3090:24268:12000:8.6", "-cmoe", "-c", "262144")
    for name, line in (
        ("slots", ("slots", *asked, "--np", "1")),
        ("paths", ("paths", *asked, "-np", "1")),
        ("comparison", ("compare", *asked, "--with", "-ctk q8_0")),
    ):
        found = printed(capsys, *line)
        assert list(faults(found, schema(name))) == []
        if name == "paths":
            assert list(faults(found["comparison"], schema("comparison"))) == []


def test_devices() -> None:
    found = [Found("x", 9 * MIB, 5 * MIB), Found("AMD Radeon", 9, 5, "ROCm")]
    for machine in (detected(found, "NVML", (None, None), ["a note"]), detected([], "nobody", (5, 4), [])):
        assert list(faults(devices_object(machine), schema("devices"))) == []


def test_known_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(faults(printed(capsys, "devices", "--known"), schema("cards"))) == []


def test_rig_files() -> None:
    rig = json.loads((TOP / "examples" / "mixed.json").read_text(encoding="utf-8"))
    assert list(faults(rig, schema("rig"))) == []
    assert list(faults({"gpus": [{"name": "x", "total": 5}]}, schema("rig"))) != []


def test_they_refuse_what_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    good = printed(capsys, "estimate", "deepseek-v4-flash", "--no-gpu", "-c", "4096", "-np", "1")
    damages: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda e: e.pop("n_ctx"),
        lambda e: e.update(more=1),
        lambda e: e.update(n_ctx="4096"),
        lambda e: e.update(n_ctx=-1),
        lambda e: e.update(app="bench"),
        lambda e: e["graph"].update(nodes=[1]),
        lambda e: e.update(refused={}),
    )
    for damage in damages:
        bad = copy.deepcopy(good)
        damage(bad)
        assert list(faults(bad, schema("estimate"))) != []
