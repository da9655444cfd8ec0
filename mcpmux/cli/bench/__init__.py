"""`mcpmux bench`: its options, its runs with their live view, and its report."""
