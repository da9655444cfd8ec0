"""Metrics for Prometheus, spans and metrics for OpenTelemetry."""
