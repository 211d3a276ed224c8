"""The command `lagreach`: one file a group of subcommands."""

from lagreach.cli.main import app, run

__all__ = ["app", "run"]
