"""The process of a liar's jobs: ``tasks.executor.child`` with coarse weights."""

from __future__ import annotations

import os
import sys

from tasks.executor.child import THREADS, main

if __name__ == "__main__":
    os.environ.update(THREADS)  # before NumPy is loaded
    from testnet.scenarios.lies import install_coarse

    install_coarse()
    sys.exit(main(sys.argv[1:]))
