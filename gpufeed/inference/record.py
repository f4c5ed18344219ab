"""The JSON that a measurement of a model in use leaves behind; gpufeed/schemas/inference.schema.yaml."""

from gpufeed.document import Document

SCHEMA_VERSION = 1
DOCUMENT = Document("inference", "inference measurement", ("{experiment}/{cell_id}.json",))

read, write = DOCUMENT.read, DOCUMENT.write
