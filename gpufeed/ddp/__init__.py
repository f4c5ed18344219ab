"""One training on several devices of one node: a process a device, started and ended as one."""
