"""The words of llama-server's command line: which are flags, how many values each takes, and errors for other words.

Follows ``common_params_parse_ex`` (common/arg.cpp), v0.5.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from memplan.errors import FlagError, shown
from memplan.llama import flag_table as table
from memplan.llama import flag_values as values


def read_flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The flags in order, each with its value ("" when it has none, the last of two).

    As in llama.cpp, whatever follows a flag with a value is that value, dashes and all. Raises FlagError.
    """
    i = 0
    while i < len(argv):
        flag = normalized(argv[i])
        if flag in table.REMOVED:
            raise FlagError(f"{flag} was removed from llama-server: use {table.REMOVED[flag]}")
        if flag in table.ANSWERS:
            raise FlagError(f"{flag}: llama-server only prints something and ends, there is nothing to estimate")
        if flag in table.OTHER_MODEL:
            raise FlagError(f"{flag} stands for a model of its own: give that model and its flags instead")
        count = table.ARITY.get(flag)
        if count is None:
            raise unknown_flag(argv[i], argv=argv[i:])
        if i + count >= len(argv):
            raise FlagError(f"{flag} needs {'a value' if count == 1 else f'{count} values'} after it")
        text = argv[i + count] if count else ""
        if flag in table.NUMBER:
            values.whole(flag, text)
        yield flag, text
        i += 1 + count


def split_words(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The flags among words in order, each with its values, as they were spelled."""
    i = 0
    while i < len(argv):
        end = i + 1 + (arity(argv[i]) or 0)
        yield tuple(argv[i:end])
        i = end


def without(argv: Sequence[str], flags: Collection[str]) -> tuple[str, ...]:
    """The words without these flags and their values; ``flags`` as ``normalized`` spells them."""
    return tuple(word for words in split_words(argv) if normalized(words[0]) not in flags for word in words)


def arity(flag: str) -> int | None:
    """How many values llama-server takes after ``flag``; None when it does not know the flag."""
    flag = normalized(flag)
    if flag in table.REMOVED:
        return 1
    return 0 if flag in table.ANSWERS or flag in table.OTHER_MODEL else table.ARITY.get(flag)


def without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line's words without the flags whose values are secret, and those flags, for what is shown of it."""
    kept: list[str] = []
    left_out: list[str] = []
    i = 0
    while i < len(words):
        flag, equals, _ = words[i].partition("=")
        end = i + 1 + (0 if equals else arity(flag) or 0)
        if normalized(flag) in table.SECRET:
            left_out.append(flag)
        else:
            kept += words[i:end]
        i = end
    return kept, left_out


def normalized(flag: str) -> str:
    """``flag`` with dashes for underscores, if it is a long one (``common_params_parse_ex``)."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def unknown_flag(flag: str, others: Sequence[str] = (), argv: Sequence[str] = ()) -> FlagError:
    """The error for a flag that is neither llama-server's nor one of ``others``, with the nearest spellings.

    ``argv``: the words from it on, for a fork's other flags.
    """
    import difflib

    if fork := table.fork_of(normalized(flag)):
        flags = dict.fromkeys(word for word in (flag, *argv) if table.fork_of(normalized(word)) == fork)
        theirs, them = ("are flags", "them") if len(flags) > 1 else ("is a flag", "it")
        return FlagError(
            f"{', '.join(flags)} {theirs} of {fork}, whose memory is not modelled; without {them} the figures are"
            " llama.cpp's own"
        )
    name, equals, value = flag.partition("=")
    if equals and arity(name) == 0:
        return FlagError(f"{shown(flag)}: {name} takes no value, give it alone")
    if equals and arity(name):
        if normalized(name) in table.SECRET:
            return FlagError(f"{name}=...: llama-server wants a space, not an equals sign: {name} ...")
        return FlagError(f"{shown(flag)}: llama-server wants a space, not an equals sign: {name} {_cut(value)}")
    known = dict.fromkeys([*others, *table.ARITY])
    if "context" in name or normalized(name) == "--max-model-len":
        return FlagError(f"unknown flag {shown(name)}; did you mean -c or --ctx-size?")
    begun = sorted((flag for flag in known if flag.startswith(f"{normalized(name)}-")), key=len)[:3]
    near = begun or difflib.get_close_matches(normalized(name), known, n=3, cutoff=0.7)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; neither memplan nor llama-server has it"
    return FlagError(f"unknown flag {shown(name)}{hint}")


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "..."
