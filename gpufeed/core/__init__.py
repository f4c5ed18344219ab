"""Everything that planning a run needs: cells, config, schemas, registry, documents. No torch, no device."""
