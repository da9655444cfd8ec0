"""mcpmux: one Model Context Protocol endpoint in front of many servers."""

__version__ = "0.1.0"
