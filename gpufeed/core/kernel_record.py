"""The JSON that the kernel benchmark leaves behind; gpufeed/core/schemas/kernel.schema.yaml describes it."""

from gpufeed.core.document import Document

SCHEMA_VERSION = 1
DOCUMENT = Document("kernel", "kernel benchmark")

read, write = DOCUMENT.read, DOCUMENT.write
