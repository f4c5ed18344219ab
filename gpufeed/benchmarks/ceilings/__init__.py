"""How far a pipeline is from its limits: end to end, compute only, input only, and where the time goes."""
