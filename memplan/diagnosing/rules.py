"""How lines of a log are told: words that one must have, a pattern, and what it says of a load."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from memplan.diagnosing.loads import Loads

Match = re.Match[str]
Take = Callable[[Loads, Match], None]
"""What a line says: it changes the loads."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``mark``: words that stand in every line that the ``pattern`` finds."""

    mark: str
    pattern: re.Pattern[str]
    take: Take


class Rules(list[Rule]):
    """Rules in order: the first that holds of a line counts.

    No pattern goes on further than some hundred characters from where it begins, so that what a line costs grows with
    its length, whatever is in it.
    """

    def say(self, mark: str, pattern: str) -> Callable[[Take], Take]:
        """A decorator for what such a line says."""
        return self.all((mark, pattern))

    def all(self, *lines: tuple[str, str]) -> Callable[[Take], Take]:
        """The same for several lines that say one thing."""

        def add(take: Take) -> Take:
            self.extend(Rule(mark, re.compile(pattern, re.ASCII), take) for mark, pattern in lines)
            return take

        return add
