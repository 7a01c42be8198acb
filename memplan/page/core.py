"""Pyodide's core, the Python that runs in a browser: from a folder, from where it was kept, or once from npm.

It is not packed with memplan: it is 13 MB for the few who make a page, and under a licence of its own (MPL-2.0). Its
files are taken by their digests alone, so it does not matter who hands them over.
"""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from memplan.errors import ProgramError, SourceError, shown
from memplan.gguf.cache import cache_folder
from memplan.infile import read_input
from memplan.machine.llama_server import find_program, run_program
from memplan.outfile import write_atomically

VERSION: Final = "314.0.7"
"""Of the npm package ``pyodide``; it has Python 3.14."""

DIGESTS: Final[Mapping[str, str]] = {
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
}
"""SHA-256 of each file that the page needs of it."""

_LARGEST: Final = 32 << 20
_PATIENCE: Final = 300.0


def pyodide_core(folder: str | None = None) -> dict[str, bytes]:
    """Every file of Pyodide's core by its name: those in ``folder``, or those that were kept, or npm's, which are kept.

    Raises SourceError for a file that is missing or another, and ProgramError where npm cannot fetch it.
    """
    if folder is not None:
        return _read(Path(folder))
    kept = cache_folder() / f"pyodide-{VERSION}"
    with contextlib.suppress(SourceError):
        return _read(kept)
    with tempfile.TemporaryDirectory() as made:
        core = _fetch(Path(made))
    with contextlib.suppress(OSError):  # a cache that cannot be written to is none
        kept.mkdir(parents=True, exist_ok=True)
        for name, data in core.items():
            write_atomically(kept / name, data)
    return core


def _read(folder: Path) -> dict[str, bytes]:
    """The files in a folder. Raises SourceError."""

    def read(name: str) -> bytes:
        try:
            return read_input(folder / name, _LARGEST)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SourceError(f"{shown(str(folder / name))}: {reason}; {_WANTED}") from None

    return _checked(str(folder), read)


def _checked(where: str, read: Callable[[str], bytes]) -> dict[str, bytes]:
    core = {name: read(name) for name in DIGESTS}
    for name, data in core.items():
        if hashlib.sha256(data).hexdigest() != DIGESTS[name]:
            raise SourceError(f"{shown(where)}: its {name} is not that of Pyodide {VERSION}; {_WANTED}")
    return core


_WANTED: Final = f"--pyodide takes the folder of npm's package pyodide {VERSION}, unpacked"


def _fetch(folder: Path) -> dict[str, bytes]:
    """The files from npm's package, which is put in a folder. Raises ProgramError and SourceError."""
    npm = find_program("npm")
    if npm is None:
        raise ProgramError(f"no npm on PATH to fetch Pyodide {VERSION} with: install Node.js; or {_WANTED}")
    command = [npm, "pack", f"pyodide@{VERSION}", "--silent", "--pack-destination", str(folder)]
    status, _, said = run_program(command, _PATIENCE)
    packed = folder / f"pyodide-{VERSION}.tgz"
    if status or not packed.exists():
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        raise ProgramError(f"npm cannot fetch Pyodide {VERSION}: {shown(last)}; or {_WANTED}")
    try:
        with tarfile.open(packed) as archive:
            return _checked(packed.name, lambda name: _member(archive, name))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SourceError(f"{packed.name}: cannot be read: {error}; {_WANTED}") from None


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        file = archive.extractfile(f"package/{name}")
    except KeyError:
        file = None
    if file is None:
        raise SourceError(f"npm's package pyodide {VERSION} has no {name}; {_WANTED}")
    return file.read(_LARGEST)
