"""Channels: many exchanges over one transport, with their answers, deadlines, events and questions."""
