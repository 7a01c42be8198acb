"""Typed access to a model's metadata, as llama.cpp takes it.

Follows src/llama-model-loader.cpp (``get_key``, ``get_key_or_arr``, ``get_arr``), v0.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memplan.errors import BadHyperParameter, MissingKey, shown
from memplan.gguf.header import Header, SkippedArray

MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS."""

MAX_NUMBER = (1 << 31) - 1
"""The largest number that llama.cpp counts with: ops take 32 bits with a sign, and sums of 32 bits go round."""

CONVERT = "convert the model again"
"""What mends a file that llama.cpp cannot load, as errors say it."""

_U32 = (1 << 32) - 1
_GGUF_TYPE = {int: "u32", float: "f32", bool: "bool", str: "str"}
_ARRAY_TYPES = {int: ("arr[u32]", "arr[i32]"), float: ("arr[f32]",), bool: ("arr[bool]",)}


class Keys:
    """Typed access to an architecture's metadata; every fault names the key and what llama.cpp expects of it."""

    def __init__(
        self, header: Header, arch: str, kv_overrides: Iterable[tuple[str, int | float | bool | str]] = ()
    ) -> None:
        """``kv_overrides``: what ``--override-kv`` puts in the file's place; llama.cpp keeps the first of a key."""
        self.header = header
        self.arch = arch
        self._metadata: Mapping[str, object] = header.metadata
        self._types = header.value_types
        self._overrides: dict[str, object] = {}
        for key, value in kv_overrides:
            self._overrides.setdefault(key, value)

    def full(self, key: str) -> str:
        """The key as the file has it."""
        return f"{self.arch}.{key}"

    def value(self, key: str) -> object:
        """The raw value, or None when the key is absent."""
        return self._metadata.get(self.full(key))

    def _scalar(self, key: str, kind: type) -> object:
        """One scalar's value: an override's, if that has the right type (``GGUFMeta::GKV::set``), or the file's."""
        v = self._overrides.get(self.full(key))
        if type(v) is kind:
            return v & _U32 if type(v) is int else v
        v = self.value(key)
        if type(v) is kind:
            self._check_type(key, _GGUF_TYPE[kind])
        return v

    def fault(self, key: str, said: str, mend: str = CONVERT) -> BadHyperParameter:
        """The error of a key: what is wrong with it."""
        return BadHyperParameter(f"metadata key {self.full(key)}: {said}; {mend}")

    def _required(self, key: str, kind: type | None = None) -> object:
        v = self.value(key) if kind is None else self._scalar(key, kind)
        if v is None:
            raise MissingKey(f"metadata key {self.full(key)} is missing; {self.arch} needs it, {CONVERT}")
        return v

    def _check_type(self, key: str, *kinds: str) -> None:
        """llama.cpp takes one GGUF type a key, whatever the value; headers made in memory may leave types out."""
        found = self._types.get(self.full(key), kinds[0])
        if found not in kinds:
            raise self.fault(key, f"stored as {found}, and llama.cpp takes {' or '.join(kinds)}")

    def check_type(self, key: str, kind: type) -> None:
        """Raises BadHyperParameter for a scalar that is there and of another type than ``kind``."""
        v = self._scalar(key, kind)
        if v is not None and type(v) is not kind:
            found = self._types.get(self.full(key), type(v).__name__)
            raise self.fault(key, f"stored as {found}, and llama.cpp takes {_GGUF_TYPE[kind]}")

    def _as_u32(self, key: str, v: object) -> int:
        if isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < 1 << 32:
            raise self.fault(key, f"expected an unsigned 32-bit integer, found {shown(str(v))}")
        if v > MAX_NUMBER:
            raise self.fault(key, f"{v} is more than {MAX_NUMBER}, from where on llama.cpp counts wrongly")
        return v

    def _as_f32(self, key: str, v: object) -> float:
        if not isinstance(v, float):
            raise self.fault(key, f"expected a float, found {shown(str(v))}")
        return v

    def u32(self, key: str, default: int | None = None) -> int:
        """An unsigned number; ``default`` where the key is absent."""
        v = self._scalar(key, int)
        if v is None and default is not None:
            return default
        return self._as_u32(key, self._required(key, int))

    def f32(self, key: str, default: float | None = None) -> float:
        """A float; ``default`` where the key is absent."""
        v = self._scalar(key, float)
        if v is None and default is not None:
            return default
        return self._as_f32(key, self._required(key, float))

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false; ``default`` where the key is absent."""
        v = self._scalar(key, bool)
        if v is None and default is not None:
            return default
        v = self._required(key, bool)
        if not isinstance(v, bool):
            raise self.fault(key, f"expected true or false, found {shown(str(v))}")
        return v

    def text(self, key: str, default: str) -> str:
        """Text; ``default`` where the key is absent."""
        v = self._scalar(key, str)
        if v is None:
            return default
        if not isinstance(v, str):
            raise self.fault(key, f"expected text, found {shown(str(v))}")
        return v

    def _array(self, key: str, v: object) -> tuple[object, ...] | None:
        if isinstance(v, SkippedArray):
            raise self.fault(key, f"an array of {v.length} elements is longer than the {MAX_LAYERS} llama.cpp holds")
        return v if isinstance(v, tuple) else None

    def _a_layer(self, key: str, n: int, kind: type) -> tuple[object, ...]:
        """One value repeated, or an array of ``n`` (``get_key_or_arr``); only a single value can be overridden."""
        items = self._array(key, self._required(key))
        if items is None:
            return (self._scalar(key, kind),) * n
        if len(items) != n:
            raise self.fault(key, f"expected {n} elements, found {len(items)}")
        self._check_type(key, *_ARRAY_TYPES[kind])
        return items

    def u32_a_layer(self, key: str, n: int, default: tuple[int, ...] | int | None = None) -> tuple[int, ...]:
        """One value a block: an array, or a single value for all; ``default`` where the key is absent."""
        if self.value(key) is None and default is not None:
            return (default,) * n if isinstance(default, int) else default
        return tuple(self._as_u32(key, v) for v in self._a_layer(key, n, int))

    def f32_a_layer(self, key: str, n: int, default: float | None = None) -> tuple[float, ...]:
        """The same for floats."""
        if self.value(key) is None and default is not None:
            return (default,) * n
        return tuple(self._as_f32(key, v) for v in self._a_layer(key, n, float))

    def one_value(self, key: str, n: int) -> None:
        """Raises BadHyperParameter where a value that may be given a block differs from block to block."""
        if self.value(key) is not None and len(set(self._a_layer(key, n, int))) != 1:
            raise self.fault(key, "values that differ from block to block are not modelled", "use one value for all")

    def flag_a_layer(self, key: str, n: int) -> tuple[bool, ...] | None:
        """The same for what is true or false; None where the key is absent."""
        if self.value(key) is None:
            return None
        return tuple(bool(v) for v in self._a_layer(key, n, bool))

    def array(self, key: str) -> tuple[object, ...] | None:
        """An array's elements; None where the key is absent."""
        v = self.value(key)
        return None if v is None else self._array(key, v)

    def u32_array(self, key: str, at_least: int) -> tuple[int, ...]:
        """At least so many elements (``get_arr``)."""
        items = self._array(key, self._required(key))
        if items is None:
            raise self.fault(key, "expected an array")
        if len(items) < at_least:
            raise self.fault(key, f"{len(items)} elements for {at_least} blocks: shorter than block_count")
        if len(items) > MAX_LAYERS:
            raise self.fault(key, f"{len(items)} elements, more than the {MAX_LAYERS} llama.cpp holds")
        self._check_type(key, *_ARRAY_TYPES[int])
        return tuple(self._as_u32(key, v) for v in items)

    def bits(self, key: str) -> tuple[bool, ...]:
        """An array of what is true or false, or of numbers that stand for it (``get_arr``)."""
        items = self._array(key, self._required(key))
        if items is None:
            raise self.fault(key, "expected an array")
        if len(items) > MAX_LAYERS:
            raise self.fault(key, f"{len(items)} elements, more than the {MAX_LAYERS} llama.cpp holds")
        self._check_type(key, *_ARRAY_TYPES[bool if items and isinstance(items[0], bool) else int])
        return tuple(bool(v) for v in items)

    def check(self, ok: bool, said: str) -> None:
        """Raises BadHyperParameter where llama.cpp would stop with an assertion or an error of its own."""
        if not ok:
            raise BadHyperParameter(f"metadata of {self.arch}: {said}; {CONVERT}")
