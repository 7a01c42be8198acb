from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import memplan
from memplan import errors

SLOW = ("rich", "typer", "pydantic", "numpy", "matplotlib")


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has after ``code``."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


def test_every_name_is_there_and_says_what_it_is() -> None:
    assert len(memplan.__all__) == len(set(memplan.__all__))
    for name in memplan.__all__:
        value = getattr(memplan, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
            assert value.__module__.startswith("memplan."), name


def test_every_exception_is_exported() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(memplan.__all__)
    assert all(issubclass(getattr(memplan, name), memplan.MemplanError) for name in defined)


def test_the_door_lists_its_names_and_has_no_others() -> None:
    assert set(memplan.__all__) <= set(dir(memplan))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        memplan.nonsense  # noqa: B018


def test_no_exported_name_is_a_modules() -> None:
    modules = {path.stem for path in Path(memplan.__file__).parent.iterdir()} - {"__init__", "__main__"}
    assert not modules & set(memplan.__all__)


def test_importing_memplan_loads_nothing_else() -> None:
    loaded = loaded_by("import memplan")
    assert not loaded & {*SLOW, "dataclasses", "memplan.errors", "memplan.llama"}


@pytest.mark.parametrize("line", ["--help", "deepseek-v4-flash --gpu 3090 -np 1 -c 4096 --json"])
def test_estimates_load_no_slow_library(line: str) -> None:
    args = ["estimate", *line.split()]
    assert not loaded_by(f"from memplan.cli import main\nassert main({args!r}) == 0") & {*SLOW} - {"typer"}
