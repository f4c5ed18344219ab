"""The JSON that the kernel benchmark leaves behind; gpufeed/schemas/kernel.schema.yaml describes it."""

from gpufeed.document import Document

SCHEMA_VERSION = 1
DOCUMENT = Document("kernel", "kernel benchmark")

read, write = DOCUMENT.read, DOCUMENT.write
