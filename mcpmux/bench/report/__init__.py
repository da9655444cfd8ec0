"""Reports of a benchmark: while it runs, on a terminal, in files; and compared with another one."""
