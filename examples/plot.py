"""The same picture for several rigs, one file each; needs memplan[plot].

python examples/plot.py [FOLDER]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RIGS = {"one": "RTX PRO 6000", "two": "2*RTX 3090"}


def main(folder: str = ".") -> None:
    for name, gpu in RIGS.items():
        file = Path(folder) / f"{name}.png"
        question = ["deepseek-v4-flash", "--gpu", gpu, "-np", "1", "-cmoe", "--over", "ctx=16k,64k,256k,1m"]
        subprocess.run([sys.executable, "-m", "memplan", "plot", *question, "-o", str(file)], check=True)
        print(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
