"""What passed: seen on both legs, kept, searched, shown, and played again."""
