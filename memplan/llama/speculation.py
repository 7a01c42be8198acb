"""Speculative decoding: what its flags make a context reserve.

Follows ``common/speculative.cpp`` (``common_speculative_n_max``, ``common_speculative_types_from_names``) and
``common/common.h`` (``need_n_rs_seq``, defaults) of llama.cpp v0.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from memplan.errors import FlagError, shown
from memplan.gguf.header import Header
from memplan.llama.flag_values import whole

_DRAFT_TYPES: Final = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
BLOCK_TYPES: Final = frozenset({"draft-dflash", "draft-dspark"})
"""Kinds that draft a block of tokens in one go, and read the inputs of some of the model's layers."""
DSPARK_SINCE: Final = 10178
"""The first build seen that knows draft-dspark; b10159 does not."""

_SNAPSHOT_TYPES: Final = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})
_NGRAM_CACHE_DRAFT: Final = 8

# flag: (the types whose longest draft it sets, lowest value, highest value)
_LENGTHS: Final[Mapping[str, tuple[tuple[str, ...], int, int]]] = {
    "--spec-draft-n-max": (_DRAFT_TYPES, 0, 2**31 - 1),
    "--spec-ngram-mod-n-max": (("ngram-mod",), 0, 1024),
    "--spec-ngram-simple-size-m": (("ngram-simple",), 1, 1024),
    "--spec-ngram-map-k-size-m": (("ngram-map-k",), 1, 1024),
    "--spec-ngram-map-k4v-size-m": (("ngram-map-k4v",), 1, 1024),
}


def _default_lengths() -> dict[str, int]:
    ngram = {"ngram-simple": 48, "ngram-map-k": 48, "ngram-map-k4v": 48, "ngram-mod": 64}
    return dict.fromkeys(_DRAFT_TYPES, 3) | ngram | {"ngram-cache": _NGRAM_CACHE_DRAFT}


def draft_kind(header: Header) -> str:
    """How a draft model drafts where ``--spec-type`` does not say (``common_speculative_types_from_gguf``).

    Empty for one that llama-server loads all the same, and does not draft with.
    """
    arch, tensors = header.metadata.get("general.architecture"), header.tensors
    if arch == "dflash":
        return "draft-dspark" if "markov_w1.weight" in tensors else "draft-dflash"
    count = header.metadata.get(f"{arch}.block_count")
    last = count - 1 if isinstance(count, int) else -1
    return "draft-mtp" if f"blk.{last}.nextn.eh_proj.weight" in tensors else ""


@dataclass(slots=True)
class Speculation:
    """The kinds of speculative decoding asked for, and the longest draft of each kind."""

    types: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=_default_lengths)

    def read(self, flag: str, text: str) -> bool:
        """Take in one flag with its value; False when it is none of speculative decoding's. Raises FlagError."""
        if flag == "--spec-type":
            names = text.split(",")
            for name in names:
                if name != "none" and name not in self.lengths:
                    raise FlagError(f"{flag} {shown(name)}: must be one of none, {', '.join(self.lengths)}")
            self.types += [] if "none" in names else names
        elif flag == "--spec-default":
            self.types.append("ngram-mod")
            self.lengths["ngram-mod"] = 64
        elif flag in _LENGTHS:
            types, low, high = _LENGTHS[flag]
            self.lengths |= dict.fromkeys(types, whole(flag, text, low, high))
        else:
            return False
        return True

    @property
    def n_draft(self) -> int:
        """The most tokens that are drafted for a sequence at once."""
        return max((self.lengths[name] for name in self.types), default=0)

    @property
    def n_rs_seq(self) -> int:
        """Rollback snapshots a sequence needs of recurrent state."""
        return self.lengths["draft-mtp"] if _SNAPSHOT_TYPES.intersection(self.types) else 0

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds that take a second context."""
        return frozenset(_DRAFT_TYPES).intersection(self.types)

    @property
    def drafting(self) -> str:
        """The kind of draft that a second context makes: MTP's where that is among several; empty where none drafts."""
        return "draft-mtp" if "draft-mtp" in self.kinds else next(filter(self.kinds.__contains__, self.types), "")
