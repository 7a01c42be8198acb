"""Built-in models: headers that need no file, with the shapes and tensor types of the files people use.

A name is ``MODEL`` or ``MODEL:RECIPE``: ``deepseek-v4-flash``, ``deepseek-v4-pro:q8_0``. A model gives the
hyper-parameters, its architecture the tensors that llama.cpp then asks for, a recipe the type of each. There is no
vocabulary in these headers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from math import prod

from memplan.errors import FlagError, HeaderError, ModelError, UnknownModel, shown
from memplan.gguf.header import DEFAULT_ALIGNMENT, Header, TensorInfo, Value
from memplan.gguf.types import F32
from memplan.llama.keys import CONVERT, Keys
from memplan.llama.weights import Wanted, parts_of
from memplan.models.builtin_model import BuiltinModel
from memplan.models.catalogue import MODELS
from memplan.models.recipes import Recipe
from memplan.models.registry import find_architecture
from memplan.releases import LATEST


def builtin_names() -> tuple[str, ...]:
    """Every full name, ``MODEL:RECIPE``."""
    return tuple(f"{model.name}:{recipe}" for model in MODELS.values() for recipe in model.recipes)


def is_builtin(name: str) -> bool:
    """Whether ``name`` is meant as a built-in model's: ``MODEL`` or ``MODEL:RECIPE``, its recipe known or not."""
    return name.partition(":")[0].lower() in MODELS


def near_names(name: str) -> str:
    """The built-in models that are called like ``name``, and where all of them are listed."""
    begun = name.partition(":")[0].lower()
    longer = [model for model in MODELS if begun and model.startswith(begun)]
    near = list(dict.fromkeys([*longer, *get_close_matches(begun, MODELS, n=3, cutoff=0.5)]))[:3]
    listed = "memplan models lists those that are built in"
    return f"did you mean {' or '.join(near)}? {listed}" if near else listed


def builtin_like(name: str) -> str:
    """The built-in model and recipe that a file of this name seems to be, as ``MODEL:RECIPE``; empty for none."""
    key = _letters(re.split(r"[/\\]", name)[-1])
    found = max((model for model in MODELS if _letters(model) in key), key=len, default="")
    if not found:
        return ""
    recipes = {_letters(recipe.called or name): name for name, recipe in MODELS[found].recipes.items()}
    recipe = recipes.get(max((letters for letters in recipes if letters in key), key=len, default=""), "")
    return f"{found}:{recipe or MODELS[found].default}"


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def builtin_header(name: str, changes: Sequence[str] = ()) -> Header:
    """The header of the built-in model called ``name`` (``MODEL`` or ``MODEL:RECIPE``), made without any file.

    The same object each time, as long as it is among the latest, so that what is known of a model is kept.
    ``changes``: hyper-parameters that it has otherwise, as ``changed_model`` takes them; its tensors are those that
    llama.cpp then asks for. Raises UnknownModel, listing what exists, and FlagError for a change that cannot be.
    """
    model_name, _, recipe_name = name.partition(":")
    model = MODELS.get(model_name.lower())
    if model is None:
        raise UnknownModel(f"no built-in model {shown(model_name.lower())}; {near_names(model_name)}")
    recipes = {known.lower(): known for known in model.recipes}
    recipe_name = recipes.get(recipe_name.lower() or model.default.lower(), "") or recipe_name
    if recipe_name not in model.recipes:
        raise UnknownModel(
            f"{model.name} has no recipe {shown(recipe_name)}; there are {', '.join(model.recipes)}; of another file"
            " the address will do, such as hf:OWNER/REPO:QUANT"
        )
    return _made(model.name, recipe_name, tuple(changes))


@lru_cache(maxsize=32)
def _made(model_name: str, recipe_name: str, changes: tuple[str, ...]) -> Header:
    model, full = MODELS[model_name], f"{model_name}:{recipe_name}"
    if changes:
        from memplan.models.changed import OPTION, changed_model

        model, full = changed_model(model, changes), f"{full} with {', '.join(changes)}"
        try:
            return header_of(model, model.recipes[recipe_name], full)
        except (HeaderError, ModelError) as error:
            said = str(error).removesuffix(f"; {CONVERT}")
            raise FlagError(f"{OPTION} {shown(', '.join(changes))}: {said}; give another value") from None
    return header_of(model, model.recipes[recipe_name], full)


def header_of(model: BuiltinModel, recipe: Recipe, name: str) -> Header:
    """The header of a model with a recipe, as a file of it would have: what llama.cpp asks for, no more."""
    metadata, types = _metadata(model, recipe)
    extra = _Has(
        model.shapes,
        (
            *model.extra,
            *model.shapes,
            *(("nextn.eh_proj.weight", "nextn.shared_head_norm.weight") if recipe.nextn else ()),
        ),
    )
    bare = Header(3, metadata, extra, DEFAULT_ALIGNMENT, 1, name, types)
    arch = find_architecture(model.arch).of_file(bare)
    hp = arch.load_hparams(Keys(bare, arch.name), LATEST)
    tensors: dict[str, TensorInfo] = {}
    offset = 0
    wanted = [w for w in arch.tensors(hp, extra, True, LATEST) if not w.duplicated]
    wanted += [Wanted(scale, (hp.n_expert,)) for w in wanted if (scale := _scale_of(w.name)) in extra]
    there = [w for w in wanted if w.name not in model.absent and (not w.optional or w.name in extra)]
    tied = all(w.name != "output.weight" for w in there)  # the embedding is the output, and quantised as it
    stored = [(w, *parts_of(w.name)) for w in there]
    # llama-quantize counts layers, and of attention's values those that there are
    values = [il for _, il, kind, suffix in stored if kind in ("attn_v", "attn_qkv") and suffix == "weight"]
    for w, il, kind, suffix in stored:
        if tied and kind == "token_embd":
            kind = "output"
        at, count = (values.index(il), len(values)) if kind in ("attn_v", "attn_qkv") else (il, hp.n_layer_all)
        type_ = recipe.type_of(kind, w.file_shape, -1 if at is None else at, count) if suffix == "weight" else F32
        tensors[w.name] = TensorInfo(w.name, w.file_shape, type_, offset)
        size = prod(w.file_shape) // type_.block_size * type_.type_size
        offset += -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
        if offset >= 1 << 64:  # gguf_init_from_reader (ggml/src/gguf.cpp): "cannot accumulate size"
            raise HeaderError(f"{name}: up to {w.name} its tensors take more than 2^64 bytes; give smaller numbers")
    return Header(3, metadata, tensors, DEFAULT_ALIGNMENT, 1, name, types)


def _scale_of(name: str) -> str:
    """The name of the scales that stand beside experts, "" for other tensors."""
    return name.replace("_exps.weight", "_exps.scale") if name.endswith("_exps.weight") else ""


class _Has(dict[str, TensorInfo]):
    """Says of a tensor's name whether the file has it, by its kind; a mapping that holds those of ``shapes`` alone."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], kinds: Iterable[str]) -> None:
        super().__init__({name: TensorInfo(name, shape, F32, 0) for name, shape in shapes.items()})
        self._kinds = frozenset(kinds)

    def __contains__(self, name: object) -> bool:
        _, kind, suffix = parts_of(str(name))
        return f"{kind}.{suffix}" in self._kinds


_GGUF_TYPES: Mapping[type, str] = {bool: "bool", int: "u32", float: "f32", str: "str"}


def _metadata(model: BuiltinModel, recipe: Recipe) -> tuple[dict[str, Value], dict[str, str]]:
    """Keys with their values (floats as f32 holds them), and with their GGUF types."""
    metadata: dict[str, Value] = {}
    types: dict[str, str] = {}
    f32 = struct.Struct("<f")
    for key, value in _rows(model, recipe):
        if isinstance(value, tuple):
            kind = type(value[0])
            types[key] = "arr[f32]" if kind is float else "arr[bool]" if kind is bool else "arr[i32]"
        else:
            types[key] = _GGUF_TYPES[type(value)]
        metadata[key] = f32.unpack(f32.pack(value))[0] if isinstance(value, float) else value
    return metadata, types


def _rows(model: BuiltinModel, recipe: Recipe) -> Iterator[tuple[str, Value]]:
    yield "general.architecture", model.arch
    yield "general.type", "model"
    yield "general.name", model.title
    yield "general.alignment", DEFAULT_ALIGNMENT
    for key, value in model.metadata(recipe).items():
        yield f"{model.arch}.{key}", value
    yield "tokenizer.ggml.model", "none"
