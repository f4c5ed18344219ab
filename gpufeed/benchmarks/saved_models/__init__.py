"""Models that are kept: trained once, saved, evaluated, and used to predict image files."""
