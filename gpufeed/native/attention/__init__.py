"""Attention for short sequences over q, k and v packed in one product: no copies, forward or backward."""
