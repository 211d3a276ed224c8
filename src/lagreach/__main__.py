"""``python -m lagreach`` is the `lagreach` command."""

from lagreach.cli.main import run

if __name__ == "__main__":
    run()
