"""What all tests have in common: they keep many graphs, in which Python need not look for garbage again and again."""

import gc


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
