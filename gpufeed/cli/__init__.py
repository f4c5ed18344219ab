"""What the command modules call."""
