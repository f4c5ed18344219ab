"""One training on several devices of one or more nodes: a process a device, started and ended together."""
