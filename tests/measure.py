"""What a call costs."""

import tracemalloc


def peak_memory(call):
    """Bytes that a call allocates at most, its result included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
