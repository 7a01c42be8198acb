"""Arguments of the commands that take no flags of llama-server's: a few options and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memplan.errors import FlagError, shown

HELP = ("-h", "--help")


@dataclass(frozen=True, slots=True)
class Options:
    """``names``: what stands alone, in order.  ``values``: options with their value, "" for switches."""

    names: tuple[str, ...]
    values: Mapping[str, str]

    @property
    def help(self) -> bool:
        """Whether help was asked for."""
        return "--help" in self.values

    def get(self, option: str) -> str | None:
        """An option's value, None when it was not given."""
        return self.values.get(option)

    def __contains__(self, option: str) -> bool:
        return option in self.values


def read_options(
    argv: Sequence[str],
    command: str,
    *,
    values: Sequence[str] = (),
    switches: Sequence[str] = (),
    names: Sequence[str] = (),
    optional: int = 0,
) -> Options:
    """Sort ``argv`` into options and names.

    ``values``, ``switches``: the options, each a long name, or "-o --output" with a short one before it.  ``names``:
    what the command needs by itself, for messages; the last ``optional`` of them may be left out. Raises FlagError.
    """
    spellings = {word: text.split()[-1] for text in (*values, *switches) for word in text.split()}
    with_value = {text.split()[-1] for text in values}
    words, found, alone = list(argv), dict[str, str](), list[str]()
    while words:
        word = words.pop(0)
        spelled, equals, value = word.partition("=")
        option = spellings.get(spelled) or ("--help" if spelled in HELP else "")
        if word == "--":
            alone += words
            break
        if option in with_value:
            if not equals:
                if not words:
                    raise FlagError(f"{spelled} needs a value after it")
                value = words.pop(0)
            if found.get(option, value) != value:
                raise FlagError(f"{spelled}: given twice ({shown(found[option])} and {shown(value)}); give only one")
            found[option] = value
        elif option:
            if equals:
                raise FlagError(f"{shown(word)}: {spelled} takes no value, give it alone")
            found[option] = ""
        elif word.startswith("-") and len(word) > 1:
            raise FlagError(_unknown(word, command, sorted({*spellings, *HELP})))
        else:
            alone.append(word)
    if "--help" not in found:
        _check_names(alone, command, names, optional)
    return Options(tuple(alone), found)


def _unknown(word: str, command: str, options: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word.partition("=")[0], options, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"see memplan {command} --help"
    return f"unknown option {shown(word)}; {hint}"


def _check_names(alone: Sequence[str], command: str, names: Sequence[str], optional: int) -> None:
    if len(alone) > len(names):
        raise FlagError(f"unexpected argument {shown(alone[len(names)])}; see memplan {command} --help")
    if len(alone) < len(names) - optional:
        raise FlagError(f"{names[len(alone)]} is missing; see memplan {command} --help")
    if "" in alone:
        raise FlagError("an empty argument: is a variable of the shell not set?")
