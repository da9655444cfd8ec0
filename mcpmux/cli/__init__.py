"""The command line: argv in, exit code out."""
