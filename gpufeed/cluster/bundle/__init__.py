"""A folder with all that a node without a network installs and reads. See docs/guide/containers.md."""
