"""Which sentences of what a release changed concern a model and its devices: they name what they are about."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

_DEVICES = {"CUDA": "CUDA", "Vulkan": "Vulkan", "Metal": "MTL", "ROCm": "ROCm", "RPC": "RPC"}
"""Words for backends, and how the names of their devices begin."""

_ARCHITECTURES = {
    "other models than DeepSeek-V4": "(?!deepseek4).*",
    "Step-3.5's and GLM-5's": "qwen35(moe)?|step35|glm-dsa",
    "GLM-5": "glm-dsa",
    "DeepSeek-V3.2": "deepseek32",
    "Mistral 4": "mistral4",
    "hyper-connection|[Cc]ompress(or|ed)|attn_output_a|[Rr]otary|DeepSeek-V4(?!-)|[Uu]nified slots": "deepseek4",
    "lid_kq|indexer": "deepseek4|deepseek32|glm-dsa",
    "Qwen3-Next": "qwen3next",
    "Qwen3.5": "qwen35(moe)?",
    "Nemotron-H": "nemotron_h(_moe)?",
    "State spaces": "nemotron_h(_moe)?",
    "Gemma 4": "gemma4",
    "GLM-4.5": "glm4moe",
    "Gemma 3, gpt-oss and Llama 4": "gemma3|gpt-oss|llama4",
}
"""Words that only some architectures have, the first that fits counts, and which those are."""

_TENSORS = {"shared expert": "shexp", "experts": "_exps", "Gates with limits": "_exps", "ecurrent states": "ssm"}
"""Words for what only some models have, and what the names of its weights hold."""


def concerning(changed: str, arch: str, devices: Collection[str], weights: Collection[str]) -> str:
    """The sentences of ``changed`` that concern a model and its devices; all of them where none names its own.

    ``arch``: ``general.architecture``.  ``devices``: names of devices.  ``weights``: names of weights.
    """
    kept = [said for said in _sentences(changed) if _concerns(said, arch, devices, weights)]
    return " ".join(kept) or changed


def _sentences(text: str) -> Iterator[str]:
    """Each with those that go on from it."""
    yield from re.split(r"(?<=[.]) (?=[A-Z])(?!Before, |But |So )", text)


def _concerns(said: str, arch: str, devices: Collection[str], weights: Collection[str]) -> bool:
    named = [prefix for word, prefix in _DEVICES.items() if re.search(rf"\b{word}", said)]
    if named and not any(device.startswith(prefix) for device in devices for prefix in named):
        return False
    for words, archs in _ARCHITECTURES.items():
        if re.search(words, said):
            if not re.fullmatch(archs, arch):
                return False
            break
    has = next((part for word, part in _TENSORS.items() if word in said), "")
    return any(has in weight for weight in weights) if has else True
