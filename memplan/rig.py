"""A rig from a command line: ``--gpu`` specs, and options with a value for each GPU; what a rig may be at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from memplan.backends.cards import CONTEXT_MIB, find_card, size_assumed
from memplan.backends.devices import CUDA, METAL, ROCM, RPC, SYCL, VULKAN, Gpu, Rig, in_device_order
from memplan.backends.vulkan_limits import limits_of
from memplan.errors import FlagError, RigError, shown
from memplan.llama.flag_values import whole

MAX_GPUS: Final = 16
"""``llama_max_devices()`` and ``GGML_CUDA_MAX_DEVICES``: more abort. The scheduler's 16 backends are these and the CPU
(``GGML_SCHED_MAX_BACKENDS``), so that one of 16 stays idle."""

MIB: Final = 1 << 20

BACKEND_NAMES: Final = {"cuda": CUDA, "vulkan": VULKAN, "metal": METAL, "mtl": METAL, "rocm": ROCM, "sycl": SYCL}
"""Backends by the names that a spec or a rig file may give them, lower case."""

MIN_BANDWIDTH: Final = 0.01
MAX_BANDWIDTH: Final = 1e6
"""GB/s that a memory's peak may be: time is bytes divided by it."""

_MAX_MIB: Final = 1 << 30
FEW_MIB: Final = 512
FEW_HOST_MIB: Final = 1024
"""Fewer MiB than a GPU, or a host, has: GB were meant."""
_MIN_CAPABILITY: Final = 5  # ggml/src/ggml-cuda/CMakeLists.txt: CMAKE_CUDA_ARCHITECTURES
_MAX_CAPABILITY: Final = 19  # 12 is today's; 86 is 8.6 without its point
_MINORS: Final = {5: (0, 2, 3), 6: (0, 1, 2), 7: (0, 2, 5), 8: (0, 6, 7, 8, 9), 9: (0,)}
"""Compute capabilities of the generations that are complete: NVIDIA adds to none of them any more."""


def parse_gpu_spec(spec: str) -> tuple[Gpu, ...]:
    """The GPUs of ``[N*]NAME[:TOTAL_MIB[:FREE_MIB[:CC]]]``, such as ``RTX 3090`` or ``2*RTX 3090:24268:23868:8.6``.

    A known card needs no figures; an empty one (``RTX 3090::20000``) is the card's own. In place of the compute
    capability there may be ``Vulkan`` or ``Metal``; a name such as ``RX 7900 XTX`` or ``M2 Ultra`` says as much.
    ``rpc:HOST:PORT:TOTAL_MIB[:FREE_MIB[:CC]]`` is a server's device. Raises RigError.
    """
    count, rest = _counted(spec)
    name, *figures = (part.strip() for part in rest.split(":"))
    endpoint = ""
    if name.lower() == "rpc":
        if len(figures) > 1 and not figures[1].isdigit():
            raise RigError(f"--gpu {shown(spec)}: {_ENDPOINT}")
        if len(figures) < 3 or not figures[2]:
            raise RigError(f"--gpu {shown(spec)}: write rpc:HOST:PORT:TOTAL_MIB[:FREE_MIB[:CC]]")
        endpoint, figures = ":".join(figures[:2]), figures[2:]
    if not name:
        raise RigError(f"--gpu {shown(spec)}: a name is missing; write [N*]NAME[:TOTAL_MIB[:FREE_MIB[:CC]]]")
    if len(figures) > 3:
        raise RigError(f"--gpu {shown(spec)}: too many colons; write [N*]NAME[:TOTAL_MIB[:FREE_MIB[:CC]]]")
    total, free, capability = (*figures, "", "", "")[:3]
    try:
        if endpoint and figures[2:] and capability[:1].isalpha():
            raise RigError(f"{shown(capability)}: a server's device has no backend here, but its card may have a CC")
        backend = check_backend(capability) if capability.lower() in BACKEND_NAMES else ""
        cc = None if backend else _capability(capability)
        if endpoint:
            size, left = _mib("total", total), _mib("free", free)
            return (make_server(endpoint, size, left, cc),) * check_count(count)
        gpu = make_gpu(name, _mib("total", total), _mib("free", free), cc, backend)
        return (gpu,) * check_count(count)
    except RigError as error:
        raise RigError(f"--gpu {shown(spec)}: {_several(spec) or error}") from None


def _several(spec: str) -> str:
    """What to write in place of several kinds in one spec; nothing when it is one."""
    kinds = [part.strip() for part in re.split(r"[+,;&]", spec)]
    if len(kinds) < 2 or not all(kinds):
        return ""
    return "repeat --gpu for each kind: " + " ".join(f"--gpu {shown(part, 30)}" for part in kinds[:4])


def _counted(spec: str) -> tuple[int, str]:
    """How many GPUs of which kind. Raises RigError for a count that is none."""
    # 7900 XT and 7900 XTX are cards
    counted = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:[*\xd7]|[xX](?![tT][xX]?\b))\s*(.*)", spec, re.DOTALL | re.ASCII)
    if counted:
        return int(counted[1]), counted[2]
    wrong = re.match(r"([^:*\xd7]*)[*\xd7]|\s*([-+.0-9]+)\s*[xX]\s", spec)
    if wrong:
        count = (wrong[1] or wrong[2] or "").strip()
        why = _several(spec) or f"the count {shown(count, 20)} must be a whole number from 1 to {MAX_GPUS}"
        raise RigError(f"--gpu {shown(spec)}: {why}")
    return 1, spec


def parse_gpus(specs: Iterable[str]) -> Rig:
    """The rig of several ``--gpu`` specs, in device order: servers' devices come first. Raises RigError."""
    if isinstance(specs, str):
        raise RigError(f"{shown(specs)}: give a list of specs, as in [{shown(specs)}]")
    gpus = check_gpus([gpu for spec in specs for gpu in parse_gpu_spec(spec)])
    return Rig(gpus, machine_memory(gpus), share_host(gpus))


def machine_memory(gpus: tuple[Gpu, ...]) -> int | None:
    """The host's memory where it is the GPUs' own, and their names say how large it is; None where they do not."""
    known = max((gpu.machine for gpu in gpus if gpu.backend != RPC), default=0)
    return known if known and share_host(gpus) else None


def share_host(gpus: tuple[Gpu, ...]) -> bool:
    """Whether all GPUs but servers' are known to have the host's memory for theirs."""
    own = [gpu for gpu in gpus if gpu.backend != RPC]
    return bool(own) and all(gpu.integrated or gpu.backend == METAL for gpu in own)


def make_gpu(
    name: str,
    total: int | None,
    free: int | None,
    capability: tuple[int, int] | None,
    backend: str = "",
    integrated: bool | None = None,
) -> Gpu:
    """One GPU; what is None is looked up among the known cards. ``total``, ``free``: bytes. Raises RigError.

    ``backend``: "" for what the name says, CUDA unless it is known for another.
    """
    if not name.isprintable():
        raise RigError("the name has line ends or control characters; write it in plain text")
    other = None
    if backend not in ("", CUDA) or (not backend and find_card(name) is None):
        other = _other_gpu(name, total, free, capability, backend, integrated)
    if other is not None:
        return other
    card = find_card(name)
    if total is not None and capability is not None:
        left = max(0, total - CONTEXT_MIB * MIB) if free is None else free
        shares = integrated if integrated is not None else card is not None and card.integrated
        return Gpu(name, total, left, capability, integrated=shares, sms=card.sms if card is not None else 0)
    if card is None:
        from memplan.backends.known import maker_of

        hint = _near(name) or "not a card that memplan knows:"
        if maker_of(name) in ("", "NVIDIA"):
            raise RigError(f"{hint} give its figures: NAME:TOTAL_MIB:FREE_MIB:COMPUTE_CAPABILITY")
        raise RigError(f"{hint} give its memory and a backend: NAME:TOTAL_MIB::Vulkan")
    gpu = card.gpu(total, free)
    if total is None:
        gpu = replace(gpu, assumed=size_assumed(name, round(card.total_mib / 1024), card.other_sizes))
    gpu = gpu if capability is None else replace(gpu, compute_capability=capability)
    return gpu if integrated is None else replace(gpu, integrated=integrated)


def _other_gpu(
    name: str,
    total: int | None,
    free: int | None,
    capability: tuple[int, int] | None,
    backend: str,
    integrated: bool | None,
) -> Gpu | None:
    """A GPU of another backend than CUDA; None when neither ``backend`` nor the name says so. Raises RigError."""
    from memplan.backends.other_cards import OtherCard, find_other

    card = find_other(name)
    known = find_card(name) if card is None else None
    if card is None and not backend:
        return None
    if card is None:
        card = OtherCard(name, backend) if known is None else OtherCard(known.description, backend, known.total_mib)
    elif backend:
        card = replace(card, backend=backend)
    if capability is not None:
        raise RigError(f"no CUDA device, but one for {_spelled(card.backend)}: leave its compute capability out")
    assumed = ""
    if total is None:
        if card.total_mib is None:
            raise RigError(f"{_near(name)} give its memory: NAME:TOTAL_MIB[:FREE_MIB]".strip())
        total = max(card.total_mib * MIB, free or 0)
        assumed = card.assumed
    gpu = replace(card.gpu(total, free), assumed=assumed)
    if card.backend == VULKAN:
        if limits_of(name).known:
            gpu = replace(gpu, description=name)  # as llama.cpp prints it
        elif known is None:
            gpu = replace(gpu, limits=replace(gpu.vulkan_limits, known=False))
    return gpu if integrated is None else replace(gpu, integrated=integrated)


def _near(name: str) -> str:
    """Which known cards may have been meant, or how many; empty when none is near, or it is one of them."""
    from memplan.backends.known import near_names

    if counted := re.fullmatch(r"([1-9][0-9]?) +(.*)|(.*?) *[xX*] ?([1-9][0-9]?)", name):
        count, card = counted[1] or counted[4], counted[2] or counted[3]
        if find_card(card):
            return f"did you mean {count}*{card}? Else"
    if sized := re.fullmatch(r"(.*?) *\(?([1-9][0-9]{0,2}) ?[gG][bB]\)?", name):
        card, mib = sized[1], int(sized[2]) * 1024
        if find_card(card):
            return f"did you mean {card}, or {card}:{mib}? Else"
    near = near_names(name)
    return f"did you mean {' or '.join(near)}? Else" if near else ""


def make_server(
    endpoint: str, total: int | None, free: int | None, capability: tuple[int, int] | None, card: str = ""
) -> Gpu:
    """A device of the rpc-server at ``HOST:PORT``; its description is the server's, as llama.cpp has it.

    ``card``: what is None is looked up under this name, if it is a known card's. Raises RigError.
    """
    match = re.fullmatch(r"[A-Za-z0-9._-]{1,253}:([0-9]{1,5})", endpoint, re.ASCII)
    if not match or not 0 < int(match[1]) < 1 << 16:
        raise RigError(f"RPC server {shown(endpoint)}: {_ENDPOINT}")
    known = _known_gpu(card, total, free)
    if known is not None:
        capability = capability or known.compute_capability
        return Gpu(endpoint, known.total, known.free, capability, RPC, endpoint=endpoint, card=card)
    if total is None:
        unknown = f"{shown(card)} is no card whose memory memplan knows: " if card else ""
        raise RigError(f"RPC server {shown(endpoint)}: {unknown}give the memory of its device")
    left = max(0, total - CONTEXT_MIB * MIB) if free is None else free
    return Gpu(endpoint, total, left, capability, RPC, endpoint=endpoint)


_ENDPOINT: Final = "a server must be HOST:PORT, the host a name or an IPv4 address: llama.cpp takes no IPv6 one"
"""``parse_endpoint`` of ggml-rpc.cpp, v0.5.0, ends the host at the first colon."""


def _known_gpu(card: str, total: int | None, free: int | None) -> Gpu | None:
    """A known card with these figures, or its own; None when the name is of none, or its memory varies."""
    from memplan.backends.other_cards import find_other

    known = find_card(card) if card else None
    if known is not None:
        return known.gpu(total, free)
    other = find_other(card) if card else None
    if other is None or (other.total_mib is None and total is None):
        return None
    return other.gpu(max((other.total_mib or 0) * MIB, free or 0) if total is None else total, free)


def check_backend(text: str) -> str:
    """A backend by its name, as llama.cpp prefixes its devices: ``MTL`` for Metal. Raises RigError."""
    if text.lower() not in BACKEND_NAMES:
        raise RigError(
            f"backend {shown(text)}: must be CUDA, Vulkan, Metal, ROCm or SYCL; a server's device is rpc:HOST:PORT"
        )
    return BACKEND_NAMES[text.lower()]


def _spelled(backend: str) -> str:
    return "Metal" if backend == METAL else backend


def check_count(count: int) -> int:
    """``count`` of a kind of GPU, if llama.cpp can hold as many. Raises RigError."""
    if not 1 <= count <= MAX_GPUS:
        raise RigError(_too_many(count))
    return count


def _too_many(count: int) -> str:
    if not count:
        return "no GPU: leave it out, or give --no-gpu for the host alone"
    return f"{count} GPUs: llama.cpp starts with 1 to {MAX_GPUS}, and a model takes at most {MAX_GPUS - 1} of them"


def check_gpus(gpus: list[Gpu]) -> tuple[Gpu, ...]:
    """All of a rig's GPUs in device order, if llama.cpp can hold them together. Raises RigError."""
    if len(gpus) > MAX_GPUS:
        raise RigError(_too_many(len(gpus)))
    return in_device_order(tuple(gpus))


def check_mib(field: str, mib: int, low: int = 1, few: int = 0) -> int:
    """A size in MiB as bytes. Raises RigError when no memory is as large, or as small: below ``few`` it is in GB."""
    if not low <= mib <= _MAX_MIB:
        raise RigError(f"{field}: {mib} MiB, must be from {low} to {_MAX_MIB}")
    if mib < few:
        raise RigError(f"{field}: {mib} MiB is too small to be meant; {mib} GB are {mib * 1024}")
    return mib * MIB


def check_bandwidth(field: str, value: float) -> float:
    """A memory's peak in GB/s. Raises RigError for what is none."""
    if not MIN_BANDWIDTH <= value < MAX_BANDWIDTH:
        raise RigError(f"{field}: {value:g} GB/s, must be from {MIN_BANDWIDTH:g} to {MAX_BANDWIDTH:g}")
    return value


def check_capability(text: str) -> tuple[int, int]:
    """A compute capability: 8.6 as (8, 6). Raises RigError."""
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9])", text, re.ASCII)
    if not match or int(match[1]) > _MAX_CAPABILITY:
        raise RigError(f"compute capability {shown(text)}: must be written as in 8.6")
    major, minor = int(match[1]), int(match[2])
    if major < _MIN_CAPABILITY:
        raise RigError(f"compute capability {text}: llama.cpp is compiled for {_MIN_CAPABILITY}.0 and above")
    known = _MINORS.get(major)
    if known is not None and minor not in known:
        raise RigError(
            f"compute capability {text}: there is none; write one of {', '.join(f'{major}.{m}' for m in known)}"
        )
    return major, minor


def _mib(field: str, text: str) -> int | None:
    if not text:
        return None
    if in_gb := re.fullmatch(r"([0-9]{1,6}) *g(?:i?b)?", text, re.ASCII | re.IGNORECASE):
        raise RigError(f"{field} memory {shown(text)}: give it in MiB: {int(in_gb[1]) * 1024}")
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise RigError(f"{field} memory {shown(text)}: must be a whole number of MiB")
    low, few = (0, 0) if field == "free" else (1, FEW_MIB)
    return check_mib(f"{field} memory", int(text), low, few)


def _capability(text: str) -> tuple[int, int] | None:
    if text[:1].isalpha():
        backends = "CUDA, Vulkan, Metal, ROCm, SYCL"
        raise RigError(f"{shown(text)}: neither a compute capability, as in 8.6, nor a backend ({backends})")
    return check_capability(text) if text else None


def parse_mibs(flag: str, text: str) -> tuple[int, ...]:
    """Values in MiB, separated by commas. Raises FlagError."""
    return tuple([whole(flag, part, 0, 1 << 30) for part in text.split(",")])


def one_each(flag: str, mibs: Sequence[int], gpus: int) -> tuple[int, ...]:
    """A value in MiB for all GPUs, or one each, as bytes for each; none where none is given. Raises FlagError."""
    if not mibs:
        return ()
    if len(mibs) not in (1, gpus):
        raise FlagError(f"{flag} has {len(mibs)} values for {gpus} GPUs: give one for all, or one each")
    return tuple(mib * MIB for mib in (tuple(mibs) * gpus if len(mibs) == 1 else mibs)[:gpus])
