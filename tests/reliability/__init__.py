"""Hardening checks: each tries something many times and counts what went wrong. `python -m tests.reliability` runs them all."""
