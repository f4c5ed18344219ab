"""Ways to run a kept model, one small file each behind the contract of `benchmarks.inference.backend`."""
