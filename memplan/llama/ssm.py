"""Hyper-parameters of models with recurrent layers.

Follows src/llama-hparams.cpp (``n_embd_r``, ``n_embd_s``, ``is_recr``) and the keys ``ssm.*`` as architectures'
``load_arch_hparams`` read them, v0.5.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memplan.llama.hparams import HParams
from memplan.llama.keys import Keys


@dataclass(frozen=True, kw_only=True)
class SSMHParams(HParams):
    """Sizes of the recurrent layers, in elements; ``is_recr``: which layers those are.

    ``ssm_d_conv``: tokens that a convolution looks at.  ``ssm_d_inner``: elements of all heads.  ``ssm_d_state``: the
    state's elements for each of them; with delta nets, elements of a key head.  ``ssm_dt_rank``: heads.
    ``ssm_n_group``: groups of heads; with delta nets, key heads.
    """

    ssm_d_conv: int
    ssm_d_inner: int
    ssm_d_state: int
    ssm_dt_rank: int
    ssm_n_group: int
    is_recr: tuple[bool, ...]

    @property
    def ssm_conv_channels(self) -> int:
        """Elements of a token that the convolution works on."""
        return self.ssm_d_inner + 2 * self.ssm_n_group * self.ssm_d_state

    @property
    def n_embd_r(self) -> int:
        """Elements of one sequence's convolution state on a layer."""
        return max(self.ssm_d_conv - 1, 0) * self.ssm_conv_channels

    @property
    def n_embd_s(self) -> int:
        """Elements of one sequence's recurrent state on a layer."""
        return self.ssm_d_state * self.ssm_d_inner


def ssm_keys(k: Keys) -> dict[str, Any]:
    """The sizes by field, all of which a model must have."""
    return {
        "ssm_d_conv": k.u32("ssm.conv_kernel"),
        "ssm_d_inner": k.u32("ssm.inner_size"),
        "ssm_d_state": k.u32("ssm.state_size"),
        "ssm_dt_rank": k.u32("ssm.time_step_rank"),
        "ssm_n_group": k.u32("ssm.group_count"),
    }
