"""DeepSeek-V4: compressed attention with a lightning indexer, hyper-connections, experts.

Follows src/models/deepseek4.cpp, v0.5.0, and for older forms b9842.
"""

from memplan.models.deepseek4.architecture import ARCHITECTURE

__all__ = ["ARCHITECTURE"]
