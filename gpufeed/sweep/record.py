"""The JSON that the sweep of one decoder leaves behind; gpufeed/schemas/sweep.schema.yaml describes it."""

from gpufeed.document import Document

SCHEMA_VERSION = 1
DOCUMENT = Document("sweep", "sweep")

read, write = DOCUMENT.read, DOCUMENT.write
