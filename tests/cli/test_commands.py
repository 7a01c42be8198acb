from __future__ import annotations

import json

import pytest

import memplan
from memplan.cli import main
from memplan.models.catalogue import MODELS
from memplan.releases import BUILDS, FORKS


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"memplan {memplan.__version__}\n"


@pytest.mark.parametrize("line", [[], ["--help"]])
def test_help_lists_the_commands(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 0
    out, err = capsys.readouterr()
    assert all(command in out for command in ("estimate", "models", "releases"))
    assert err == ""


@pytest.mark.slow
def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name}:{recipe}" in out for name, model in MODELS.items() for recipe in model.recipes)
    assert "80.8 GiB" in out
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert {model["name"] for model in listed if model["default"]} == {f"{m.name}:{m.default}" for m in MODELS.values()}
    assert all(model["bytes"] > 0 for model in listed)


def test_releases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["releases"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(release.name in out and release.changed in out for release in (*BUILDS, *FORKS))
    assert main(["releases", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["releases"]
    assert [release["name"] for release in listed] == [release.name for release in (*BUILDS, *FORKS)]
    assert [release["default"] for release in listed].count(True) == 1
    assert {release["name"] for release in listed if not release["asked"]} >= {"b10103", "b10235"}
