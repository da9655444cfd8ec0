"""Tasks: tool calls that are answered later, in every pair of eras."""
