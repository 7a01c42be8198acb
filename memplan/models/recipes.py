"""Recipes: the tensor type of each kind of tensor, as the files that people use have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from memplan.gguf.types import BY_NAME, F32, I32, GGMLType


@dataclass(frozen=True, slots=True)
class Rule:
    """A type for some tensors. ``kinds``: a pattern over kinds (``ffn_down_exps``); the first rule that fits counts.

    ``every``: of every so many layers the first, 0 for all.  ``more_bits``: only in the layers that llama-quantize
    gives more bits (``use_more_bits``): the first and the last eighth, and every third between.  ``layers``: only in
    these, if there are any.
    """

    kinds: str
    type: str
    every: int = 0
    more_bits: bool = False
    layers: tuple[int, ...] = ()

    def fits(self, kind: str, il: int, n_layer: int) -> bool:
        """Whether a tensor of layer ``il`` (-1: none) goes by this rule."""
        if (self.every and (il < 0 or il % self.every)) or (self.layers and il not in self.layers):
            return False
        if self.more_bits and not (il < n_layer // 8 or il >= 7 * n_layer // 8 or (il - n_layer // 8) % 3 == 2):
            return False
        return bool(_pattern(self.kinds).fullmatch(kind))


@lru_cache(maxsize=512)
def _pattern(kinds: str) -> re.Pattern[str]:
    return re.compile(kinds)


_WHOLE_BLOCKS = {"q2_K": "q4_0", "q3_K": "q4_0", "iq2_xxs": "iq4_nl", "iq3_xxs": "iq4_nl", "iq4_xs": "iq4_nl",
                 "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0"}  # fmt: skip
"""What llama-quantize takes in place of a type in whose blocks of 256 a row cannot be cut."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a file is ``about``, and its ``rules``; vectors are f32 and tables of numbers i32 in every file.

    ``nextn``: with one layer for multi-token prediction (MTP).  ``called``: what the names of such files have in them,
    where that is not the recipe's own.
    """

    about: str
    rules: tuple[Rule, ...]
    nextn: bool = False
    called: str = ""

    @property
    def types(self) -> frozenset[str]:
        """Names of all types that its tensors may have."""
        named = [rule.type for rule in self.rules]
        return frozenset({"f32", "i32", *named, *(_WHOLE_BLOCKS.get(name, "f16") for name in named)})

    def type_of(self, kind: str, shape: tuple[int, ...], il: int, n_layer: int) -> GGMLType:
        """The type of a tensor of this kind and shape on layer ``il``, -1 for none."""
        if kind == "ffn_gate_tid2eid":
            return I32
        if len(shape) == 1:
            return F32
        found = next((rule.type for rule in self.rules if rule.fits(kind, il, n_layer)), "f32")
        if shape[0] % BY_NAME[found].block_size:
            found = _WHOLE_BLOCKS.get(found, "f16")
        return BY_NAME[found]


def _deepseek4(
    gate_up: str, down: str, attention: str, shared: str, ends: tuple[str, str], compressor: str, *more: Rule,
    rest: str = "f32", router: str = "f32",
) -> tuple[Rule, ...]:  # fmt: skip
    """DeepSeek-V4's kinds of tensors. ``ends``: embedding, output. ``rest``: hyper-connections and positions."""
    return (
        *more,
        Rule("ffn_(gate|up)_exps", gate_up),
        Rule("ffn_down_exps", down),
        Rule("ffn_.*_shexp", shared),
        Rule("token_embd", ends[0]),
        Rule("output", ends[1]),
        Rule("(attn|indexer)_compressor_ape|.*hc_.*", rest),
        Rule("(attn|indexer)_compressor_.*|indexer[.].*", compressor),
        Rule("ffn_gate_inp", router),
        Rule("attn_.*|nextn[.].*", attention),
    )


_ANTIREZ_Q2 = Recipe(
    "experts iq2_xxs and q2_K, the rest q8_0 and f16",
    _deepseek4("iq2_xxs", "q2_K", "q8_0", "q8_0", ("f16", "q8_0"), "f16", rest="f16", router="f16"),
)

DEEPSEEK4: Mapping[str, Recipe] = {
    "antirez-q2": _ANTIREZ_Q2,
    "antirez-q4": Recipe(
        "experts q4_K, the rest q8_0 and f16",
        _deepseek4("q4_K", "q4_K", "q8_0", "q8_0", ("f16", "q8_0"), "f16", rest="f16", router="f16"),
    ),
    "mtp-q2": replace(_ANTIREZ_Q2, about="antirez-q2 and one layer for multi-token prediction (MTP)", nextn=True),
    "mxfp4": Recipe(
        "no one file: experts mxfp4, attention q8_0, indexer, embedding and output bf16, router f32",
        _deepseek4("mxfp4", "mxfp4", "q8_0", "q8_0", ("bf16", "bf16"), "bf16"),
    ),
    "q3": Recipe(
        "no one file: experts q3_K and q4_K, every fifth layer's down experts q6_K",
        _deepseek4(
            "q3_K", "q4_K", "q6_K", "q8_0", ("q6_K", "q6_K"), "bf16", Rule("ffn_down_exps", "q6_K", every=5),
            router="bf16",
        ),
    ),
    "q8_0": Recipe("everything q8_0", _deepseek4("q8_0", "q8_0", "q8_0", "q8_0", ("q8_0", "q8_0"), "q8_0")),
    "ud-q2": Recipe(
        "no one file: experts iq2_xxs and iq3_xxs, every third layer's down experts q4_K",
        _deepseek4(
            "iq2_xxs", "iq3_xxs", "q6_K", "q6_K", ("q4_K", "q6_K"), "q8_0", Rule("ffn_down_exps", "q4_K", every=3)
        ),
    ),
}  # fmt: skip
"""Recipes of DeepSeek-V4's files, and of files as they might be."""

FLASH: Mapping[str, Recipe] = {
    **DEEPSEEK4,
    **{
        name: replace(DEEPSEEK4[name], about=f"antirez's {file}: {DEEPSEEK4[name].about}")
        for name, file in (("antirez-q2", "IQ2XXS-w2Q2K"), ("antirez-q4", "Q4KExperts"))
    },
    "official": Recipe(
        "llama.cpp's own conversion (--outtype auto): experts mxfp4, attention q8_0, the rest bf16",
        _deepseek4(
            "mxfp4", "mxfp4", "q8_0", "q8_0", ("bf16", "bf16"), "bf16", Rule("indexer[.]attn_q_b", "q8_0"),
            router="bf16",
        ),
        called="mxfp4",
    ),
    "ud-q4_k_xl": Recipe(
        "Unsloth's UD-Q4_K_XL: experts mxfp4, router bf16, the rest q8_0",
        _deepseek4("mxfp4", "mxfp4", "q8_0", "q8_0", ("q8_0", "q8_0"), "q8_0", router="bf16"),
    ),
    "ud-q8_k_xl": Recipe(
        "Unsloth's UD-Q8_K_XL: experts mxfp4, the rest bf16",
        _deepseek4("mxfp4", "mxfp4", "bf16", "bf16", ("bf16", "bf16"), "bf16", router="bf16"),
    ),
}  # fmt: skip
"""Those, and files of DeepSeek-V4-Flash whose types and sizes are public.

Of Unsloth's other files (UD-IQ1_S, UD-IQ1_M, UD-IQ2_XXS, UD-Q2_K_XL, UD-IQ3_XXS, UD-Q3_K_XL) it is not public which
layers have which types, so no recipe can stand for one; their headers say it.
"""

DSPARK: Mapping[str, Recipe] = {
    "mxfp4": Recipe(
        "experts mxfp4 as published, attention q8_0, the rest bf16 and f32",
        (
            Rule("fc", "q8_0"),
            Rule("markov_w[12]", "bf16"),
            *_deepseek4("mxfp4", "mxfp4", "q8_0", "q8_0", ("q8_0", "q8_0"), "bf16", router="bf16"),
        ),
    ),
}
"""Recipes of the drafter that comes with DeepSeek-V4-Flash."""

KEPT_F32 = Rule("ffn_gate_inp(_shexp)?|ssm_(conv1d.*|norm|a|d)|per_layer_model_proj|indexer[.][kq]_proj", "f32")
"""What llama-quantize leaves as it is."""

COMMON: Mapping[str, Recipe] = {
    "q4_K_M": Recipe(
        "q4_K, with q6_K where it counts",
        (
            KEPT_F32,
            Rule("output", "q6_K"),
            Rule("(attn_v|attn_qkv|ffn_down|ffn_down_exps|ffn_down_shexp)", "q6_K", more_bits=True),
            Rule(".*", "q4_K"),
        ),
    ),
    "q8_0": Recipe("everything q8_0", (KEPT_F32, Rule(".*", "q8_0"))),
    "bf16": Recipe("as published", (KEPT_F32, Rule(".*", "bf16"))),
    "mxfp4": Recipe(
        "experts mxfp4 as published, the rest q8_0", (KEPT_F32, Rule(".*_exps", "mxfp4"), Rule(".*", "q8_0"))
    ),
}
"""Recipes of files of any architecture."""

DENSE: Mapping[str, Recipe] = {name: recipe for name, recipe in COMMON.items() if name != "mxfp4"}
"""Those of models without experts."""

DYNAMIC: Mapping[str, Recipe] = {
    **DENSE,
    "ud-q2": Recipe(
        "experts iq2_xxs, q2_K and q3_K, the rest larger",
        (
            KEPT_F32,
            Rule("token_embd", "q4_K"),
            Rule("ffn_down_exps", "q3_K", more_bits=True),
            Rule("ffn_down_exps", "q2_K"),
            Rule("ffn_(gate|up|gate_up)_exps", "iq2_xxs"),
            Rule("attn_v|ffn_down.*", "q6_K"),
            Rule(".*", "q5_K"),
        ),
    ),
}
"""Those, and a dynamic quantisation of very large models."""
