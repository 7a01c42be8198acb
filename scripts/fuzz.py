"""Fuzz memplan for a while: ``python scripts/fuzz.py [SECONDS] [TARGET...]``.

Every input comes from a seed, which is printed with each fault; ``--seed N TARGET`` runs one again. Fails on an
exception that is none of memplan's, on an input that takes more than ten seconds, and on more than 300 MB of memory.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzzing.targets import TARGETS

LONGEST = 10
MOST_MEMORY = 300 * 10**6


def memory() -> int:
    """The most memory that this process has had, bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> int:
    """Run; the exit status is 1 when there was a fault."""
    parser = argparse.ArgumentParser(description="Fuzz memplan for a while.")
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seed", type=int, help="one input again")
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"unknown target {unknown[0]}; there are {', '.join(TARGETS)}")

    def too_long(signum: int, frame: object) -> None:
        raise TimeoutError(f"an input took more than {LONGEST} s")

    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, too_long)
    ends = time.monotonic() + arguments.seconds
    seeds = random.SystemRandom()
    count = dict.fromkeys(names, 0)
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        while True:
            for name in names:
                seed = seeds.randrange(2**32) if arguments.seed is None else arguments.seed
                count[name] += 1
                try:
                    if hasattr(signal, "SIGALRM"):
                        signal.alarm(LONGEST)
                    TARGETS[name](random.Random(seed))
                except Exception:
                    faults += 1
                    print(f"** {name}, seed {seed}", file=sys.stderr)
                    traceback.print_exc()
                finally:
                    if hasattr(signal, "SIGALRM"):
                        signal.alarm(0)
            if arguments.seed is not None or time.monotonic() > ends or faults >= 20:
                break
    print(", ".join(f"{name} {n:,}" for name, n in count.items()), f"- {memory() / 1e6:,.0f} MB at most")
    if memory() > MOST_MEMORY:
        print(f"more memory than {MOST_MEMORY / 1e6:,.0f} MB", file=sys.stderr)
        faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
