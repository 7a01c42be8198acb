"""Headers of models behind addresses: range requests, all shards at once, and a cache.

A header with a vocabulary of 130,000 tokens has 8 MiB, so the first request asks for 12 MiB and most models need no
other; the other shards' headers have some 20 KiB each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from memplan.errors import HeaderError, RemoteError
from memplan.gguf import cache, hub
from memplan.gguf.header import Header, parse_header
from memplan.gguf.http import LARGEST_PAGE, Changed, NotModified, Policy, RemoteFile, Unreachable, fetch, too_slow
from memplan.gguf.raw import RawHeader, Recorder, take_apart
from memplan.gguf.reader import MAX_HEADER
from memplan.gguf.source import as_shard, merge_shards

FIRST_WINDOW: Final = 12 << 20
SHARD_WINDOW: Final = 64 << 10
MAX_SHARDS: Final = 1024
_AT_ONCE: Final = 8
_LARGE: Final = 1 << 20
_TICK: Final = 0.5
_PART: Final = "#part"
"""After the address of a file of which a part is kept."""

_PART_AGE: Final = 86400.0
_MAX_PAGES: Final = 50

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Access:
    """How the network may be used.

    ``offline``: not at all, only what is in the cache.  ``cache``: keep what was read, and use it again; without, a
    header that was kept before is read and kept anew.  ``progress``: called with a name and the bytes received so far.
    ``warn``: called with a line that a user should see.
    """

    offline: bool = False
    cache: bool = True
    policy: Policy = field(default_factory=Policy)
    progress: Callable[[str, int], None] | None = None
    warn: Callable[[str], None] | None = None


def read_remote(model: str, access: Access | None = None) -> Header:
    """The header of a model behind an address, its shards put together. ``model``: what ``hub.locate`` takes.

    Raises RemoteError when it cannot be had, and what ``read_header`` raises for its contents.
    """
    raws = read_remote_raw(model, access)
    return raws[0].header if len(raws) == 1 else merge_shards(raw.header for raw in raws)


def read_remote_raw(model: str, access: Access | None = None) -> list[RawHeader]:
    """The same, a RawHeader for each shard, in order; the bytes of the first alone."""
    access = access or Access()
    ends = time.monotonic() + access.policy.total
    location = hub.locate(model)
    address = location.address or location.file(hub.choose(location, _listing(location, access)))
    given = _read(address, location.token, FIRST_WINDOW, access, ends)
    count = given.header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count < 2:
        return [given]
    if count > MAX_SHARDS:
        raise RemoteError(f"{given.header.name}: says it is one of {count} shards; {MAX_SHARDS} are read at most")
    addresses = hub.siblings(address, count)

    sizes: dict[int, int] = {}

    def task(i: int) -> Callable[[], RawHeader]:
        def read() -> RawHeader:
            window = SHARD_WINDOW if i else FIRST_WINDOW
            raw = given if addresses[i] == address else _read(addresses[i], location.token, window, access, ends)
            sizes[i] = len(raw.data)
            if sum(list(sizes.values())) > MAX_HEADER:
                raise RemoteError(f"{given.header.name}: the headers of its shards have more than {MAX_HEADER} bytes")
            return raw if not i else RawHeader(as_shard(raw.header), b"", {}, b"")

        return read

    # headers of other shards are small; where they are not, few are held at once
    first = in_parallel([task(0), task(1)])
    at_once = _AT_ONCE if sizes[1] < _LARGE else 1
    return first + in_parallel([task(i) for i in range(2, count)], at_once)


def in_parallel(
    tasks: Sequence[Callable[[], _T]],
    at_once: int = _AT_ONCE,
    seconds: float | None = None,
    waiting: Callable[[], None] | None = None,
) -> list[_T]:
    """The results of all tasks, in order; the first exception ends it at once.

    ``waiting``: called now and then meanwhile. Raises ``queue.Empty`` when they have not all ended in ``seconds``.

    The threads are daemons, so nobody waits for a dead connection when the user has given up.
    """
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, _T | None, BaseException | None]] = SimpleQueue()
    for i in range(len(tasks)):
        todo.put(i)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set() and not todo.empty():
            try:
                i = todo.get_nowait()
            except Exception:  # another thread was faster
                return
            try:
                done.put((i, tasks[i](), None))
            except BaseException as error:
                done.put((i, None, error))

    for _ in range(min(at_once, len(tasks))):
        threading.Thread(target=work, daemon=True).start()
    results: dict[int, _T] = {}
    ends = None if seconds is None else time.monotonic() + seconds
    try:
        while len(results) < len(tasks):
            left = _TICK if ends is None else min(_TICK, ends - time.monotonic())
            try:
                i, result, error = done.get(timeout=max(left, 0.0))
            except Empty:
                if ends is not None and time.monotonic() >= ends:
                    raise
                if waiting is not None:
                    waiting()
                continue
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its frames hold this one: what they opened is closed now, not by the collector
            results[i] = result  # type: ignore[assignment]
    finally:
        stop.set()
    return [results[i] for i in range(len(tasks))]


def _read(address: str, token: str, window: int, access: Access, ends: float, anew: bool = False) -> RawHeader:
    """The header of one file, from the cache or the network, until ``ends``.

    What comes before it breaks off is kept, and what was kept is gone on from; not when it is read ``anew``.
    """
    file = RemoteFile(address, token=token, first=window, policy=access.policy, progress=access.progress)
    entry = cache.load(address) if access.cache else None
    kept = _parse(entry.data, file.name) if entry else None
    if kept and entry and (access.offline or entry.age < cache.FRESH):
        return kept
    if access.offline:
        raise RemoteError(f"{file.name}: not in memplan's cache; leave out --offline, or name a file on this machine")
    if kept and entry:
        file.known_etag = entry.etag
    part = cache.load(address + _PART) if access.cache and not anew else None
    if part and part.etag and part.age < _PART_AGE:
        file.known_etag = ""
        file.resume(part.data, part.etag)
    recorder = Recorder(file)
    show = access.progress
    waiting = (lambda: show(file.name, file.position)) if show else None
    try:
        with file:
            header = _in_time(lambda: parse_header(recorder, file.name), file, access.policy, ends, waiting)
        raw = take_apart(header, recorder.data)
    except Changed:
        cache.drop(address + _PART)
        if anew or not part:
            raise
        return _read(address, token, window, access, ends, anew=True)
    except NotModified:
        if kept is None:
            raise RemoteError(f"{file.name}: the server says that it has not changed, but it was never read") from None
        cache.renew(address)
        return kept
    except Unreachable as error:
        if access.cache and file.etag and file.position:
            cache.store(address + _PART, recorder.data, file.etag)
        if kept is None:
            raise
        if access.warn:
            access.warn(f"{error}; the cached header is used")
        return kept
    if access.cache or cache.load(address) is not None:  # what was kept is not left as it was
        cache.store(address, raw.data, file.etag)
    cache.drop(address + _PART)
    return raw


def _in_time(
    task: Callable[[], _T],
    file: RemoteFile | hub.Location,
    policy: Policy,
    ends: float,
    waiting: Callable[[], None] | None = None,
) -> _T:
    """The result of a task that must end before ``ends``. Raises Unreachable when it does not."""
    try:
        return in_parallel([task], seconds=ends - time.monotonic(), waiting=waiting)[0]
    except Empty:
        raise too_slow(file.name, policy, getattr(file, "position", 0)) from None


def _parse(data: bytes, name: str) -> RawHeader | None:
    try:
        return take_apart(parse_header(BytesIO(data), name), data)
    except HeaderError:
        return None


def _listing(location: hub.Location, access: Access) -> list[str]:
    """The paths of all files of a repository."""
    entry = cache.load(location.listing) if access.cache else None
    if entry and (access.offline or entry.age < cache.FRESH):
        return entry.data.decode("utf-8", "replace").splitlines()
    if access.offline:
        raise RemoteError(f"{location.name}: the listing is not in memplan's cache; leave out --offline")
    paths: list[str] = []
    read = 0
    address = location.listing
    ends = time.monotonic() + access.policy.total
    waiting = partial(access.progress, location.name, 0) if access.progress else None
    for _ in range(_MAX_PAGES):
        page = partial(fetch, address, name=location.name, token=location.token, policy=access.policy)
        data, headers = _in_time(page, location, access.policy, ends, waiting)
        read += len(data)
        if read > LARGEST_PAGE:
            raise RemoteError(f"{location.name}: the listing has more than {LARGEST_PAGE} bytes; name the file itself")
        paths += hub.parse_listing(location, data)
        address = hub.next_page(location, headers)
        if not address:
            break
    if access.cache:
        cache.store(location.listing, "\n".join(paths).encode(), "")
    return paths
