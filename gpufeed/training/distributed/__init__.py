"""One training on several devices, of one node or several: a process a device, started and ended as one."""
