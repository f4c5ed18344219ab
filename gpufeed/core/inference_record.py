"""The JSON that a measurement of a model in use leaves behind; gpufeed/core/schemas/inference.schema.yaml."""

from gpufeed.core.document import Document

SCHEMA_VERSION = 1
DOCUMENT = Document("inference", "inference measurement", ("{experiment}/{cell_id}.json",))

read, write = DOCUMENT.read, DOCUMENT.write
