"""Where a model that drafts may lie: flags for it that are tried, and what each costs a token."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.estimator import answer
from memplan.llama.flag_fields import same_setting
from memplan.loaded import load
from memplan.planning.speed import Bandwidths
from memplan.question import Question

Words = tuple[str, ...]

_PLACED = same_setting("-devd", "-otd", "-cmoed", "-ncmoed", "-ngld")


def drafter_places(question: Question) -> tuple[Sequence[Words], Sequence[Words]]:
    """Flags to try: those that are worth comparing, the first as llama-server does without any; and for want of better.

    No flags alone where nothing drafts that has weights of its own, or where the user's flags place it.
    """
    draft, names = question.draft, question.flags.devices or question.rig.names
    if draft is None or not names or question.flags.given & _PLACED:
        return ((),), ()
    alone = [("-devd", name) for name in reversed(names)] if len(names) > 1 else []
    experts = [("-cmoed",)] if any("_exps." in name for name in draft.tensors) else []
    # what drafts for DeepSeek-V4 takes the output from where it lies, which is the last GPU
    both = [(*on, *words) for on in alone for words in experts]
    return [(), *alone[:1], *experts], [*alone[1:], *both, ("-ngld", "0")]


def drafting_ms(question: Question, bandwidths: Bandwidths) -> float:
    """About how many milliseconds it takes to read what drafts once: of experts, those that a token uses."""
    draft, made = question.draft, answer(question).draft
    if draft is None or made is None:
        return 0.0
    model = load(draft, question.flags, question.release)
    hp, placement = model.hparams, made.placement
    share = max(hp.n_expert_used) / hp.n_expert if hp.n_expert else 1.0
    gpus = {name: i for i, name in enumerate(question.rig.buffer_names)}
    total = 0.0
    for t in model.tensors.tensors:
        nbytes, gpu = t.nbytes * (share if "_exps." in t.name else 1.0), gpus.get(placement.tensors[t.role].name)
        total += bandwidths.host_ms(nbytes) if gpu is None else bandwidths.gpu_ms(gpu, nbytes)
    return total
