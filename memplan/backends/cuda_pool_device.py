"""What scratch depends on of a CUDA device and a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml.backend import Scratch
from memplan.releases.cuda_pools import PoolRules, pool_rules

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.releases import Release


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """What scratch depends on of a device and a release.

    ``cc``: compute capability, 860 for 8.6.  ``sms``: multiprocessors, which size what blocks leave for one another.
    """

    cc: int
    sms: int
    release: Release
    rules: PoolRules


def pool_device(gpu: Gpu, release: Release) -> PoolDevice:
    """A CUDA device as its pool sees it."""
    return PoolDevice(gpu.cc, gpu.multiprocessors, release, pool_rules(release))


NOTHING = Scratch()
