"""A log cut into loads: which of them lines are about, and what that one has come to."""

from __future__ import annotations

from typing import Final

from memplan.diagnosing.log import Failure, Load, LogGpu, Stage

MAX_LOADS: Final = 200
"""Loads that are kept of one log, the last ones."""

MAX_NAMES: Final = 100
"""Devices, buffer types and tensor types of a load that are remembered: a log that lies costs no memory."""

_MAX_FAILURES: Final = 50


class Loads:
    """The loads of a log that is read from its beginning on.

    ``line``: the number of the line that is read.  ``commands``: command lines so far.  ``process``: what is known of
    llama.cpp before its first load.
    """

    def __init__(self) -> None:
        self.found: list[Load] = []
        self.line = 0
        self.commands = 0
        self.process = Load()
        self._load: Load | None = None
        self._served: Load | None = None
        """The load for which a second one drafts, while lines are about that."""

    @property
    def begun(self) -> bool:
        """Whether the process has a load already."""
        return self._load is not None

    @property
    def current(self) -> Load:
        """The load that lines are about; the process before its first."""
        return self._load if self._load is not None else self.process

    @property
    def served(self) -> Load:
        """The load of the model that is served, also while lines are about what drafts for it."""
        return self._served or self.current

    def begin(self) -> Load:
        """A model's file is opened: a load begins."""
        if self._served is not None and self.current.path and self.current.n_tensors is None:
            return self.current  # of what drafts
        self._served = None
        load = self._load = Load(line=self.line)
        process = self.process
        load.build, load.version, load.command, load.fit = process.build, process.version, process.command, process.fit
        load.gpus = {name: LogGpu(name, g.description, g.capability, g.total_mib) for name, g in process.gpus.items()}
        load.failures = []
        self._keep(load)
        return load

    def begin_draft(self, path: str) -> None:
        """What drafts is loaded, or its context is made, beside the model that is served."""
        if self._load is not None:
            self._served = self.served
            self._load = self._served.draft = Load(line=self.line, path=path, dry=self._served.dry)

    def new_process(self) -> None:
        """llama.cpp was started, again perhaps."""
        self._keep_process()
        command = self.process.command if self._load is None else ()
        self.process = Load(line=self.line, command=command)
        self._load = self._served = None

    def finish(self) -> list[Load]:
        """All loads; what has none of a model's lines but a failure, or that it is loaded, is one too.

        A command line alone is none: a page of advice has some.
        """
        self._keep_process()
        unstarted = Load(line=self.process.line, command=self.process.command)
        if not self.found and self.process.content != unstarted.content:
            self.found.append(self.process)
        return self.found

    def _keep_process(self) -> None:
        """At default verbosity a load is known by its end alone."""
        if self._load is None and (self.process.failures or self.process.ready):
            self._keep(self.process)

    def _keep(self, load: Load) -> None:
        self.found.append(load)
        del self.found[:-MAX_LOADS]

    def stage(self, loading: Stage = Stage.UNKNOWN) -> Stage:
        """What it is doing now: ``loading``, unless all buffers are there."""
        load = self.current
        return Stage.RUNNING if (load.reserved or self.served.ready) and not load.dry else loading

    def fail(
        self, kind: str, said: str, stage: Stage = Stage.UNKNOWN, buffer: str = "", size: int | None = None
    ) -> None:
        """Something went wrong; the words are ``Failure``'s."""
        if self.served.ready and not self.served.dry:
            stage = Stage.RUNNING
        failures, drafting = self.served.failures, self._served is not None and stage is not Stage.RUNNING
        if len(failures) < _MAX_FAILURES:
            failures.append(Failure(kind, said.strip()[:300], stage, buffer, size, drafting))
