"""Speed of lagreach beside what one would use instead. ``python -m benchmarks --help`` says how to run it.

One op is one file with an `OP` (see `benchmarks.harness.Op`); a new file is found without registration.
"""
