"""What of llama.cpp's source memplan's rules cite, and which of it differs between two releases.

    python scripts/cited.py OLD NEW [--all]
    python scripts/cited.py SOURCE

OLD, NEW and SOURCE are folders of llama.cpp's source. With two, prints every cited function that differs, with the
modules whose rules follow it, and then what else differs in the cited files; that is what has to be read for a new
release. ``--all`` prints what is the same as well. With one, prints the citations that are not in it, and exits with 1
if there are any.

A module cites the files that its docstrings name, and of those the functions that they name: in double backticks, or
behind the file and a colon, as in ``ggml-cuda.cu: ggml_cuda_init``. A name may end with ``*``, or begin with ``...``
for the beginning of another. A file may be given without its folders where none that lies as high has its name.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "memplan"

FOLDERS = ("src", "ggml", "common", "tools", "include", "app")
"""Folders of llama.cpp that rules are read in."""

ELSEWHERE = re.compile(r"^llama\.cpp$|^cub/|(regex_automaton|radv_\w+|anv_\w+|isl)\.[ch]$")
"""What looks like a file of llama.cpp's and is none: its own name, and files of CUB, libstdc++ and Mesa."""

_FILE = re.compile(r"(?<![\w/-])((?:[\w-]+/)*[\w-]+\.(?:cpp|cuh|cu|c|hpp|h|m))(?![\w-])")
_NAME = r"(?:\.\.\.)?[A-Za-z]\w*(?:_|::)[\w:]*\*?"
_QUOTED = re.compile(rf"``({_NAME})``")
_BEHIND = re.compile(rf"(?:``)?:\s+({_NAME}(?:,\s+{_NAME})*)(?=[\s,;.)])")


@dataclass(frozen=True, slots=True)
class Cites:
    """What one module cites: files with the line of each, names, and (file, name) where both stand together."""

    module: str
    files: Mapping[str, int]
    names: frozenset[str]
    together: frozenset[tuple[str, str]]


def docstrings(module: Path) -> Iterator[tuple[int, str]]:
    """Every docstring of a module, attributes' too, with its line."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def citations(package: Path = PACKAGE) -> list[Cites]:
    """What the modules of a package cite, those that cite a file."""
    found = []
    for module in sorted(package.rglob("*.py")):
        files: dict[str, int] = {}
        names: set[str] = set()
        together: set[tuple[str, str]] = set()
        for line, text in docstrings(module):
            names |= {m[1] for m in _QUOTED.finditer(text)}
            for m in _FILE.finditer(text):
                if ELSEWHERE.search(m[1]):
                    continue
                files.setdefault(m[1], line + text.count("\n", 0, m.start()))
                behind = _BEHIND.match(text, m.end())
                if behind is not None:
                    together |= {(m[1], name) for name in re.split(r",\s+", behind[1])}
        if files:
            where = module.relative_to(package).as_posix()
            found.append(Cites(where, files, frozenset(names), frozenset(together)))
    return found


class Source:
    """A folder of llama.cpp's source."""

    def __init__(self, top: Path) -> None:
        self.top = top
        files = [p for folder in FOLDERS for p in sorted((top / folder).rglob("*.*")) if p.is_file()]
        self.paths = [p.relative_to(top).as_posix() for p in files]
        self._defined: dict[str, Mapping[str, str]] = {}

    def path(self, file: str) -> str:
        """A file's path below ``top``, the highest with that name; empty when there is none, or more than one."""
        found = [path for path in self.paths if f"/{path}".endswith(f"/{file}")]
        highest = min((path.count("/") for path in found), default=0)
        found = [path for path in found if path.count("/") == highest]
        return found[0] if len(found) == 1 else ""

    def defined(self, path: str) -> Mapping[str, str]:
        """``definitions`` of a file."""
        if path not in self._defined:
            self._defined[path] = definitions((self.top / path).read_text(errors="replace"))
        return self._defined[path]

    def body(self, path: str, name: str) -> str:
        """All that a file defines by a name; empty when nothing."""
        known = self.defined(path)
        last = name.rpartition("::")[2]
        if last.endswith("*"):
            return "\n".join(body for other, body in known.items() if other.startswith(last[:-1]))
        if last.startswith("..."):
            return "\n".join(body for other, body in known.items() if other.endswith(last[3:]))
        return known.get(last, "")

    def defines(self, path: str, name: str) -> bool:
        """Whether a file defines a name, or several where it is a beginning or an end."""
        return bool(self.body(path, name))

    def differing(self, other: Source, path: str) -> set[str]:
        """Names that a file of both defines otherwise, or that one of both does not define."""
        a, b = self.defined(path), other.defined(path)
        return {name for name in {*a, *b} if a.get(name) != b.get(name)}


def definitions(text: str) -> Mapping[str, str]:
    """Functions, types, constants and macros that begin in the first column, by name without its scopes.

    Goes by how llama.cpp's source is laid out: what begins there ends with a brace there. Comments and line breaks do
    not count.
    """
    found: dict[str, list[str]] = {}
    lines = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).split("\n")
    at = 0
    while at < len(lines):
        start, line = at, lines[at]
        at += 1
        if not line or line[0] in " \t{}" or re.match(r"namespace|extern|using|#\s*(?!\s*define)", line):
            continue
        ends = r"(?<!\\)$" if line[0] == "#" else r"[;{}]\s*$"
        while at < len(lines) and not re.search(ends, lines[at - 1]):
            at += 1
        head = " ".join(lines[start:at])
        if re.search(r"\{\s*$", head):
            while at < len(lines) and not lines[at].startswith("}"):
                at += 1
            at += 1
        if name := _name_of(head):
            found.setdefault(name, []).extend(lines[start:at])
    return {name: " ".join(" ".join(body).split()) for name, body in found.items()}


def _name_of(head: str) -> str:
    """What a definition's first lines define, without its scopes; empty when that is nothing."""
    named = r"(?:typedef\s+)?(?:struct|class|enum(?:\s+class)?)\s+(\w+)\s*(?:final\s*)?(?::[^:]|\{|$)"
    if m := re.match(r"#\s*define\s+(\w+)", head) or re.match(named, head):
        return m[1]
    before, call, _ = re.sub(r"<[^<>]*>", "", head).partition("(")
    if call and "=" not in before:
        m = re.search(r"(~?\w+)\s*$", before)
    else:
        m = re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*=", head)
    return m[1] if m else ""


def resolved(source: Source, cites: Sequence[Cites]) -> dict[str, dict[str, set[str]]]:
    """By path and name in a source: the modules that cite it; the name is empty for a file as a whole."""
    found: dict[str, dict[str, set[str]]] = {}
    for c in cites:
        names = c.names | {name for _, name in c.together}
        for path in filter(None, map(source.path, c.files)):
            of_file = found.setdefault(path, {})
            for name in ("", *(name for name in names if source.defines(path, name))):
                of_file.setdefault(name, set()).add(c.module)
    return found


def missing(source: Source, cites: Sequence[Cites]) -> list[str]:
    """Citations that are not in a source, a line each."""
    said = []
    for c in cites:
        said += [f"{c.module}:{line}: no file {file}" for file, line in c.files.items() if not source.path(file)]
        for file, name in sorted(c.together):
            path = source.path(file)
            if path and not source.defines(path, name):
                said.append(f"{c.module}:{c.files[file]}: {file} does not define {name}")
    return said


def compared(old: Source, new: Source, cites: Sequence[Cites], every: bool = False) -> Iterator[str]:
    """What of the citations differs between two sources, as lines."""
    before, after = resolved(old, cites), resolved(new, cites)
    rest = []
    for path in sorted({*before, *after}):
        if path not in before or path not in after:
            yield f"{path}: {'gone' if path in before else 'new'}"
            continue
        names = {n: before[path].get(n, set()) | after[path].get(n, set()) for n in {*before[path], *after[path]}}
        lines = []
        for name in sorted(filter(None, names)):
            a, b = old.body(path, name), new.body(path, name)
            state = "new" if not a else "gone" if not b else "differs" if a != b else "the same"
            if every or state != "the same":
                lines.append(f"  {name}: {state} ({', '.join(sorted(names[name]))})")
        if lines:
            yield path
            yield from lines
        others = old.differing(new, path) - names.keys()
        if others:
            rest.append(f"{path} ({', '.join(sorted(names['']))}): {', '.join(sorted(others))}")
    if rest:
        yield "what else differs in these files"
        yield from rest


def main() -> int:
    """The whole script; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--all", action="store_true", help="print what is the same as well")
    args = parser.parse_args()
    for top in (args.old, args.new):
        if top is not None and not (top / "ggml").is_dir():
            parser.error(f"{top} is no folder of llama.cpp's source")
    if args.new is None:
        said = missing(Source(args.old), citations())
        sys.stdout.writelines(f"{line}\n" for line in said)
        return 1 if said else 0
    found = compared(Source(args.old), Source(args.new), citations(), args.all)
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
