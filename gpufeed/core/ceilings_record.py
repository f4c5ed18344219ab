"""The JSON that the ceilings of one cell leave behind; core/schemas/ceilings.schema.yaml describes it."""

from gpufeed.core.document import Document

SCHEMA_VERSION = 1
DOCUMENT = Document("ceilings", "measurement of ceilings", ("{experiment}/{cell_id}.json",))

read, write = DOCUMENT.read, DOCUMENT.write
