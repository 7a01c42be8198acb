"""``python -m memplan``."""

from __future__ import annotations

import sys

from memplan.cli import main

sys.exit(main())
