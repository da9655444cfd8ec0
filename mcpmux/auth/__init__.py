"""Identify clients by tokens and certificates, refuse others, and get tokens for upstreams."""
