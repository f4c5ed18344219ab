"""Strips: many small JPEG files joined by byte copy into tall ones, each decoded in one call."""
