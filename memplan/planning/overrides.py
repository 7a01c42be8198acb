"""Short ``-ot`` patterns for a set of tensors: ranges of layers folded, and proved to match what is meant.

llama.cpp searches a pattern in a tensor's name and takes the first that is found (src/llama-model-loader.cpp:
``create_tensor``, v0.5.0); a comma ends a pattern, so none is used here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from memplan.llama.patterns import compile_pattern

Rule = tuple[str, str]
"""A pattern and the buffer type it sends tensors to."""

_EXPERT = re.compile(r"blk\.([0-9]+)\.ffn_([a-z_]+)_exps\.")
_FEED_FORWARD = re.compile(r"blk\.([0-9]+)\.ffn_(gate|up|down)\.weight")


def write_overrides(wanted: Mapping[str, str], names: Sequence[str]) -> list[Rule]:
    """Rules that send each tensor of ``wanted`` to its buffer type and match no other of ``names``.

    ``wanted``: names of routed experts, or of feed-forward weights alone, and their buffer types. What the user has
    placed is matched by none of the rules, so it does not matter which come first.
    """
    rules: list[Rule] = []
    for buffer in dict.fromkeys(wanted[name] for name in names if name in wanted):
        chosen = {name for name in wanted if wanted[name] == buffer}
        rules += [(pattern, buffer) for pattern in _patterns(chosen, names)]
    return rules


def override_words(rules: Sequence[Rule]) -> tuple[str, ...]:
    """The rules as one ``-ot``; nothing when there is none."""
    return ("-ot", ",".join(f"{pattern}={buffer}" for pattern, buffer in rules)) if rules else ()


def matched(rules: Iterable[Rule], names: Iterable[str]) -> dict[str, str]:
    """The buffer type that the rules send each name to; names that no rule matches are left out."""
    searches = [(compile_pattern(pattern), buffer) for pattern, buffer in rules]
    found = {}
    for name in names:
        buffer = next((buffer for search, buffer in searches if search(name)), None)
        if buffer is not None:
            found[name] = buffer
    return found


def _patterns(chosen: set[str], names: Sequence[str]) -> list[str]:
    """Patterns that match exactly ``chosen`` among ``names``, the shortest of several ways to group them."""
    kinds: dict[int, set[str]] = {}
    experts = any(map(_EXPERT.match, chosen))
    parsed = {name: match for name in names if (match := (_EXPERT if experts else _FEED_FORWARD).match(name))}
    for name in chosen:
        match = parsed[name]
        kinds.setdefault(int(match[1]), set()).add(match[2])
    there: dict[str, set[int]] = {}
    for match in parsed.values():
        there.setdefault(match[2], set()).add(int(match[1]))
    ways = [
        [_pattern(layers, of, there, experts) for of, layers in grouped.items()]
        for grouped in (_by_set(kinds), _by_kind(kinds, there), _full_first(kinds, there))
    ]
    ways.sort(key=lambda patterns: sum(len(p) + 5 for p in patterns))
    for patterns in ways:
        if _exact(patterns, chosen, names):
            return patterns
    return [f"^{re.escape(name)}$" for name in names if name in chosen]


def _exact(patterns: Sequence[str], chosen: set[str], names: Sequence[str]) -> bool:
    searches = [compile_pattern(p) for p in patterns]
    return all(any(search(name) for search in searches) == (name in chosen) for name in names)


_Groups = dict[tuple[str, ...], set[int]]


def _by_set(kinds: Mapping[int, set[str]]) -> _Groups:
    """Layers that lack the same kinds together."""
    groups: _Groups = {}
    for layer, of in sorted(kinds.items()):
        groups.setdefault(tuple(sorted(of)), set()).add(layer)
    return groups


def _by_kind(kinds: Mapping[int, set[str]], there: Mapping[str, set[int]]) -> _Groups:
    """A pattern for each kind; kinds with the same layers share one."""
    groups: dict[frozenset[int], list[str]] = {}
    for kind in sorted(there):
        layers = frozenset(layer for layer, of in kinds.items() if kind in of)
        if layers:
            groups.setdefault(layers, []).append(kind)
    return {tuple(of): set(layers) for layers, of in groups.items()}


def _full_first(kinds: Mapping[int, set[str]], there: Mapping[str, set[int]]) -> _Groups:
    """Whole layers, then what is left of each kind."""
    full = {layer for layer, of in kinds.items() if all(layer not in there[kind] for kind in there.keys() - of)}
    groups = _by_kind({layer: of for layer, of in kinds.items() if layer not in full}, there)
    return {tuple(sorted(there)): full, **groups} if full else groups


def _pattern(layers: set[int], of: tuple[str, ...], there: Mapping[str, set[int]], experts: bool) -> str:
    """One pattern for the experts, or the feed-forward weights, ``of`` these kinds in these layers."""
    everywhere = set().union(*(there[kind] for kind in of))
    if not experts:
        what = f"ffn_{of[0]}" if len(of) == 1 else f"ffn_({'|'.join(of)})"
        return what if layers >= everywhere else rf"\.{fold(layers, everywhere)}\.{what}"
    every_kind = all(kind in of for kind, at in there.items() if at & layers)
    what = "exps" if every_kind else f"{of[0]}_exps" if len(of) == 1 else f"({'|'.join(of)})_exps"
    if layers >= everywhere:
        return what
    return rf"\.{fold(layers, everywhere)}\.{'.*' if every_kind else 'ffn_'}{what}"


def fold(numbers: Iterable[int], among: Iterable[int]) -> str:
    """A pattern for these numbers and no other of ``among``: ``{8, ..., 21}`` as ``([89]|1.|2[01])``.

    What is not ``among`` them may match: where a model has 43 layers, ``4.`` stands for 40 to 42.
    """
    wanted = set(numbers)
    never = set(among) - wanted
    units: dict[str, set[int]] = {}
    for n in sorted(wanted):
        units.setdefault(str(n)[:-1], set()).add(n % 10)
    by_class: dict[str, list[str]] = {}
    for tens, digits in units.items():
        by_class.setdefault(_digits(digits, {n % 10 for n in never if str(n)[:-1] == tens}), []).append(tens)
    choices = []
    for last, heads in by_class.items():
        plain = [head for head in heads if len(head) != 1]
        single = {int(head) for head in heads if len(head) == 1}
        choices += [head + last for head in plain]
        if single:
            choices.append(_class(single) + last)
    return choices[0] if len(choices) == 1 else f"({'|'.join(choices)})"


def _digits(digits: set[int], never: set[int]) -> str:
    """A pattern for one digit out of ``digits``, where those of ``never`` must not match."""
    return _class(digits) if never else "."


def _class(digits: set[int]) -> str:
    if len(digits) == 10:
        return "."
    runs: list[list[int]] = []
    for d in sorted(digits):
        if runs and runs[-1][-1] == d - 1:
            runs[-1].append(d)
        else:
            runs.append([d])
    text = "".join("".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs)
    return text if len(digits) == 1 else f"[{text}]"
