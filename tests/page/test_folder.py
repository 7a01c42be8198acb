"""The folder of static files: what is in it, where it is written, and whose Pyodide it takes."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.errors import ProgramError
from memplan.page import core
from memplan.page.core import DIGESTS, VERSION
from memplan.page.folder import STATIC, packed, page_files

CORE: Mapping[str, bytes] = {name: name.encode() for name in DIGESTS}
"""Stands for Pyodide's files where no browser is."""


@pytest.fixture(autouse=True)
def no_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is kept, and no npm is there to fetch it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("memplan.page.core.find_program", lambda name: None)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with files that pass for Pyodide's."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in CORE.items()}
    monkeypatch.setattr("memplan.page.core.DIGESTS", digests)
    folder = tmp_path / "pyodide"
    folder.mkdir()
    for name, data in CORE.items():
        (folder / name).write_bytes(data)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_is_written_and_written_again(made_up: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    line = ["page", "-o", str(site), "--pyodide", str(made_up)]
    assert main(line) == 0
    assert files(site) == page_files(CORE)
    listed = json.loads((site / "files.json").read_bytes())["files"]
    assert {
        name: hashlib.sha256(data).hexdigest() for name, data in files(site).items() if name != "files.json"
    } == listed
    assert (site / "pyodide" / "pyodide.mjs").read_bytes() == b"pyodide.mjs"
    assert "publish them" in capsys.readouterr().err
    (site / "style.css").write_text("old")
    assert main(line) == 0 and files(site) == page_files(CORE)


def test_other_files_are_kept(made_up: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("mine")
    line = ["page", "--pyodide", str(made_up), "-o"]
    assert main([*line, str(tmp_path / "site")]) == 2
    assert "is not empty, and no page of memplan's" in capsys.readouterr().err
    assert files(tmp_path / "site") == {"index.html": b"mine"}
    assert main([*line, str(tmp_path / "site" / "index.html")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main([*line, str(tmp_path / "none" / "site")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main([*line, str(tmp_path / "site"), "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--force"], "--force is for the folder of -o DIR"),
        (["-o", "site", "--port", "80"], "--port is for serving the page"),
        (["--port", "70000"], "--port 70000"),
        (["extra"], "unexpected argument 'extra'; see memplan page --help"),
        (["-o", "site"], f"no npm on PATH to fetch Pyodide {VERSION} with: install Node.js; or --pyodide takes"),
        (["-o", "site", "--pyodide", "nowhere"], "No such file or directory"),
    ],
)
def test_bad_input(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("memplan.page.core.pyodide_core", core.pyodide_core if "-o" in words else lambda folder: CORE)
    assert main(["page", *words]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out
    assert not (tmp_path / "site").exists()


def test_a_file_that_is_not_pyodide_s_is_refused(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made_up / "pyodide.mjs").write_text("other")
    assert main(["page", "-o", "site", "--pyodide", str(made_up)]) == 2
    assert f"its pyodide.mjs is not that of Pyodide {VERSION}" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="the npm here is a shell script")
def test_npm_s_package_is_fetched_once(made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "package.tgz"
    with tarfile.open(packages, "w:gz") as archive:
        archive.add(made_up, "package")
    npm = tmp_path / "npm"
    npm.write_text(f'#!/bin/sh\n[ "$1 $2" = "pack pyodide@{VERSION}" ] && cp "{packages}" "$5/pyodide-{VERSION}.tgz"\n')
    npm.chmod(0o755)
    monkeypatch.setattr("memplan.page.core.find_program", lambda name: str(npm))
    assert core.pyodide_core() == CORE
    npm.write_text("#!/bin/sh\necho E404 >&2; exit 1\n")
    assert core.pyodide_core() == CORE  # kept
    (tmp_path / "cache" / "memplan" / f"pyodide-{VERSION}" / "pyodide.mjs").write_text("changed")
    with pytest.raises(ProgramError, match=f"npm cannot fetch Pyodide {VERSION}: 'E404'"):
        core.pyodide_core()


def test_the_archive_has_what_the_page_asks_for_and_no_more() -> None:
    assert packed() == packed()
    with zipfile.ZipFile(io.BytesIO(packed())) as archive:
        names = archive.namelist()
    assert "memplan/page/engine.py" in names and "memplan/planning/plan.py" in names
    assert not [name for name in names if name.startswith(("memplan/cli/", "memplan/machine/"))]


def test_every_name_that_the_page_uses_is_there() -> None:
    """Modules and their exports, files, and elements by their ids: JavaScript says nothing of what is missing."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([\w-]+)"', page)
    assert len(ids) == len(set(ids))
    scripts = {path.name: path.read_text(encoding="utf-8") for path in STATIC.glob("*.js")}
    for name, script in scripts.items():
        for imported, source in re.findall(r'import (?:\{([^}]*)\}|\* as \w+) from "\./([\w.]+)"', script):
            exported = re.findall(r"export (?:async )?(?:function|class|const) (\w+)", scripts[source])
            assert {word.strip() for word in imported.split(",") if word.strip()} <= set(exported), (name, source)
        assert set(re.findall(r'\$\("([\w-]+)"\)', script)) <= set(ids), name
    described = " ".join(re.findall(r'aria-describedby="([^"]+)"', page)).split()
    assert {*described, *re.findall(r'for="([\w-]+)"', page)} <= set(ids)


def test_nothing_is_asked_of_other_hosts() -> None:
    for path in STATIC.iterdir():
        addresses = re.findall(r"https?://[\w.-]+", path.read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org"}, path.name
