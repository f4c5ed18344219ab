"""Predictions and advice from results: settings of a loader, and changes to a pipeline."""
