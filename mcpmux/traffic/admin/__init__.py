"""The admin listener: its access check, its routes, the inspector's pages."""
