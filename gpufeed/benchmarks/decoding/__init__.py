"""The sweep of decoders: images a second of each over image sizes, cores, batch sizes and page caches."""
