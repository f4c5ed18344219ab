"""Attention for short sequences, with q, k and v packed in one product: no copies, forward or backward."""
