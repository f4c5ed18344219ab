"""How far a pipeline is from its limits: a cell end to end, its training alone, its input alone, and why."""
