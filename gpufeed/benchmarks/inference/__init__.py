"""Kept models in use: exported, quantised, and measured with each backend."""
