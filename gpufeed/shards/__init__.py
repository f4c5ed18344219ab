"""Shards: a dataset's encoded files in plain tar files, as webdataset reads them."""
