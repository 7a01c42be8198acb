"""The script that finds what a release changes of the functions that rules cite."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import cited
from scripts.cited import FOLDERS, Source, citations, compared, definitions, missing

OLD = """\
#include "ggml.h"
#define GGML_MAX_SRC 10

static const char * NAMES[] = {
    "a",
};

struct ggml_split {
    int inputs; // room for thirty
};

// what follows changed
static bool ggml_fuse(const struct ggml_cgraph * graph,
                      int node) {
    if (node) {
        return false;
    }
    return graph != NULL;
}

ggml_tensor * llm_graph_context::build_norm(
        ggml_tensor * cur) const {
    return cur;
}
"""
NEW = (
    OLD.replace("return false", "return true")
    .replace("thirty", "any")
    .replace("        ggml_tensor *", "  ggml_tensor *")
)
RULES = '''"""Follows ``ggml_fuse`` and ``build_*`` (ggml/src/ggml.c)."""

LIMIT = 10
"""At most so many (ggml.c: GGML_MAX_SRC, ggml_gone)."""
'''


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two sources, and a package that cites them."""
    for name, text in (("old", OLD), ("new", NEW)):
        (tmp_path / name / "ggml/src").mkdir(parents=True)
        (tmp_path / name / "ggml/src/ggml.c").write_text(text)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/rules.py").write_text(RULES)
    return tmp_path / "old", tmp_path / "new", tmp_path / "package"


def test_definitions_without_comments_and_line_breaks() -> None:
    found = definitions(OLD)
    assert list(found) == ["GGML_MAX_SRC", "NAMES", "ggml_split", "ggml_fuse", "build_norm"]
    assert found["ggml_split"] == "struct ggml_split { int inputs; };"
    assert found["build_norm"].endswith("{ return cur; }")


def test_what_a_release_changes(trees: tuple[Path, Path, Path]) -> None:
    old, new, package = trees
    cites = citations(package)
    assert list(compared(Source(old), Source(new), cites)) == ["ggml/src/ggml.c", "  ggml_fuse: differs (rules.py)"]
    every = list(compared(Source(old), Source(new), cites, every=True))
    assert [line.strip() for line in every[1:]] == [
        "GGML_MAX_SRC: the same (rules.py)",
        "build_*: the same (rules.py)",
        "ggml_fuse: differs (rules.py)",
    ]
    assert missing(Source(old), cites) == ["rules.py:4: ggml.c does not define ggml_gone"]


def test_what_else_differs_is_named(trees: tuple[Path, Path, Path]) -> None:
    old, new, package = trees
    (new / "ggml/src/ggml.c").write_text(NEW + "\nvoid ggml_new(void) {\n}\n")
    assert list(compared(Source(old), Source(new), citations(package)))[-1] == "ggml/src/ggml.c (rules.py): ggml_new"


def test_the_command(
    trees: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, package = trees
    monkeypatch.setattr(cited, "citations", lambda: citations(package))
    for line, status, says in (((old, new), 0, "ggml_fuse: differs"), ((old,), 1, "does not define ggml_gone")):
        monkeypatch.setattr("sys.argv", ["cited.py", *map(str, line)])
        assert cited.main() == status
        assert says in capsys.readouterr().out


def test_modules_that_follow_llama_cpp_cite_files_of_it() -> None:
    cites = {c.module: c for c in citations()}
    for module in cited.PACKAGE.rglob("*.py"):
        name = module.relative_to(cited.PACKAGE).as_posix()
        follows = any("\nFollows " in text and "libstdc++" not in text for _, text in cited.docstrings(module))
        assert name in cites or not follows, f"{name} says what it follows, but names no file of llama.cpp"
    for c in cites.values():
        assert all("/" not in file or file.partition("/")[0] in FOLDERS or file.startswith("ggml-") for file in c.files)
