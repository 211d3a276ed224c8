"""The command line without a Python of its own, which takes a second to start."""

import contextlib
import io
import subprocess
import sys
from unittest import mock

import jaxtyping

from lagreach.cli.main import run


def lagreach(*args, cwd="."):
    """Run a command; what it printed and its exit code, as `subprocess.run` has them."""
    printed, said, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(said),
        mock.patch.object(sys, "argv", ["lagreach", *map(str, args)]),
        mock.patch.object(jaxtyping.config, "jaxtyping_disable", True),  # as users run it
    ):
        try:
            run()
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(args, code, printed.getvalue(), said.getvalue())
