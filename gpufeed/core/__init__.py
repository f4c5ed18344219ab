"""What a run plans with: cells, config, schemas, registry, documents. No torch, no device."""
