"""One training on several devices of one or more nodes: a process for each device, started and ended
together.
"""
