"""Flags for llama-server that fit a rig, to start it from a script.

python examples/plan.py [GPU ...]
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys


def main(*gpus: str) -> None:
    fixed = ["-c", "65536", "-np", "1"]
    rig = [word for gpu in gpus or ("2*RTX 3090",) for word in ("--gpu", gpu)]
    question = ["deepseek-v4-flash", *fixed, *rig, "--json"]
    done = subprocess.run([sys.executable, "-m", "memplan", "plan", *question], capture_output=True, text=True)
    if done.returncode > 1:
        sys.exit(done.stderr)
    plan = json.loads(done.stdout)
    if plan["args"] is None:
        print("nothing fits; nearest:")
        for nearest in plan["nearest"]:
            print(" ", nearest["change"])
        return
    print(shlex.join(["llama-server", "-m", "DeepSeek-V4-Flash.gguf", *fixed, *plan["args"]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
