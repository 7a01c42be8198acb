"""The search for a placement: the sorts that are tried, one after the other."""

from __future__ import annotations

from memplan.planning.asking import Asking
from memplan.planning.attempt import SETTINGS, Attempt, Effort
from memplan.planning.setting import Candidate, Setting


class Search(Asking):
    """One search.

    ``most``: a placement with more bytes on GPUs than what was found, though it is slower.  ``more``: whether there may
    be one, by sums.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.most: Candidate | None = None
        self.more = False

    def find(self, partial: bool = False, effort: Effort = "best", copies: bool | None = None) -> Candidate | None:
        """The best placement that fits, or None.

        With everything but experts on the GPUs - or, if ``partial``, with as few whole layers as possible on the host;
        prompts' experts are computed on the host only if their copies fit no GPU.  ``effort``: how long to look.
        ``copies``: only with, or only without, copies of experts for prompts.
        """
        ledger = self.ledger()
        if ledger is None or (self.refused is not None and self.refused.kind in SETTINGS):
            return None
        ways = (False, True) if copies is None else (not copies,)
        for no_op_offload in ways if self.flags.op_offload else (False,):
            firsts = range(ledger.n_items + 1) if partial else (0,)
            attempt = Attempt(self, ledger, no_op_offload, firsts, effort)
            found = attempt.best()
            self.most, self.more = attempt.most, attempt.more
            if found is not None and (found.layout.first < ledger.n_items or ledger.first == ledger.n_items):
                return found
            if self.host_is_short:
                break
        return None
