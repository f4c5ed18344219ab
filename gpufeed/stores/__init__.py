"""Datasets in another form for one loader: decoded cache, strips, shards, FFCV file."""
