"""``python -m benchmarks [NAMES...] [--quick] [--out DIR]``: tests first, then times, then JSON."""

import sys

from benchmarks.harness import ask_for_one_thread, main

if __name__ == "__main__":
    ask_for_one_thread()  # before anything imports numpy, torch or numba
    sys.exit(main())
