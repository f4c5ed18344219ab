"""Clusters: checks before a run is submitted, and bundles for nodes without a network."""
