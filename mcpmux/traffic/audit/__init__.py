"""The audit log: one record per exchange, chained by hashes, never lossy."""
