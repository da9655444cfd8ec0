"""The admin listener: its door, its routes, the inspector's pages."""
