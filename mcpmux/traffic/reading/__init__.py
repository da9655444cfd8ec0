"""Read captures: follow, filter, combine, count and export them."""
