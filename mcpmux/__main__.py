"""The entry point of `mcpmux` and `python -m mcpmux`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper

from click import ClickException

from mcpmux.cli.main import cli


def main() -> None:
    """Run the command line and exit with its exit code; with 1 if the output cannot be written to its end."""
    open_streams()
    code: object = None
    try:
        try:
            cli(prog_name="mcpmux")
        except SystemExit as end:
            code = end.code
            sys.stdout.flush()
            raise
    except OSError as error:
        with suppress(OSError):
            if not code:  # else the reason was shown
                show(error)
        drop_output()
        sys.exit(1)


def open_streams() -> None:
    """Open the standard streams that the caller has closed, on the null device. Have all take any text."""
    # Else the next file or socket would get the number of one, with all that is read or printed there.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - it stays open
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # the locale may lack what a server writes, or a `…` of ours
            stream.reconfigure(errors="backslashreplace")


def show(error: OSError) -> None:
    """Show on stderr why the output cannot be written, unless its reader has gone. Raises OSError."""
    from mcpmux.cli.process import error_for_user  # not at the top: `--version` needs neither logs nor trio

    if isinstance(shown := error_for_user(error), ClickException):
        shown.show()


def drop_output() -> None:
    """Drop what is left in the buffers: Python would try to write it, and end with another code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


if __name__ == "__main__":
    main()
