"""Kept models in use: exported, quantised, and measured as they run by each backend."""
