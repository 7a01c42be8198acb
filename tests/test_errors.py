from __future__ import annotations

import inspect
import re

from memplan import errors
from memplan.errors import MemplanError, shown


def classes() -> dict[str, type[MemplanError]]:
    found = inspect.getmembers(errors, lambda x: isinstance(x, type) and issubclass(x, MemplanError))
    return dict(found)


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Z]\w+Error|[A-Z]\w+)(?:  +.*)?$", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else "Exception"
    assert drawn == {name: cls.__base__.__name__ for name, cls in classes().items() if cls.__base__}


def test_every_class_says_when_in_a_sentence() -> None:
    for cls in classes().values():
        assert cls.__doc__ and "\n" not in cls.__doc__ and cls.__doc__.endswith("."), cls


def test_shown_is_one_short_line() -> None:
    assert shown("blk.0") == "'blk.0'"
    assert shown("a\n\x1b\0") == r"'a\n\x1b\x00'"
    assert len(shown("x" * 10_000)) < 100


def test_no_error_shows_what_may_be_secret_of_an_address() -> None:
    long = f"https://user:{'p' * 100}@host/m.gguf"
    said = str(
        MemplanError(f"'https://me:pw@host:9/m@1.gguf?token=pw' and http://host/x?token=pw#pw, {shown(long)}; why?")
    )
    assert said == "'https://host:9/m@1.gguf' and http://host/x 'https://host/m.gguf'; why?"
