"""The entry point of `mcpmux` and `python -m mcpmux`."""

from __future__ import annotations

from mcpmux.cli.main import cli


def main() -> None:
    """Run the command line and exit with its exit code."""
    cli(prog_name="mcpmux")


if __name__ == "__main__":
    main()
