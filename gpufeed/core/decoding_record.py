"""The JSON that the sweep of one decoder leaves behind; core/schemas/sweep.schema.yaml describes it."""

from gpufeed.core.document import Document

SCHEMA_VERSION = 1
DOCUMENT = Document("sweep", "sweep")

read, write = DOCUMENT.read, DOCUMENT.write
