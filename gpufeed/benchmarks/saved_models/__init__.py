"""Models that are kept: trained once, saved, evaluated, and asked about image files."""
