"""Backends that run a kept model, one small file each; `benchmarks.inference.backend` is their contract."""
