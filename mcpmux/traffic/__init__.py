"""The traffic on both legs: observed, captured, searched, shown, and replayed."""
