"""Makes the estimates of hardmax attention that the package ships: ``python tools/hardmax_estimates.py [TOKENS ...]``.

Theory fits its curve to them (``smimbench_attention/channels/attention/hardmax/information.py``); other numbers of tokens or of
samples are estimated when they are asked for. Without TOKENS all of ``SHIPPED`` are made. Run it after every change to how
information is sampled; tests/channels/attention/test_attention_hardmax_many.py makes some of them again.
"""

from __future__ import annotations

import json
import sys

from smimbench_attention.channels.attention.hardmax import AttentionHardmax
from smimbench_attention.channels.attention.hardmax.information import (
    NODES,
    SHIPPED_ESTIMATES,
    node_estimates,
)

SHIPPED = range(3, 9)
"""Numbers of tokens whose estimates are shipped."""


def main() -> None:
    """Make the estimates of the numbers of tokens that the command line gives, or of all, and write them next to the rest."""
    content = (
        json.loads(SHIPPED_ESTIMATES.read_text()) if SHIPPED_ESTIMATES.exists() else {}
    )
    for tokens in map(int, sys.argv[1:] or SHIPPED):
        samples = AttentionHardmax(tokens=tokens).sample_count
        content[str(tokens)] = {
            "samples": samples,
            "estimates": [
                node_estimates(tokens, samples, index).tolist()
                for index in range(NODES)
            ],
        }
        SHIPPED_ESTIMATES.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
