"""Find secrets in JSON and text, and replace them. Pure."""
