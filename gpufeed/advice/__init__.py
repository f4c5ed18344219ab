"""What measurements let one predict: rates of cells that nobody has measured, and what to change."""
