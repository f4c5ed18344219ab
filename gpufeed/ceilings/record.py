"""The JSON that the ceilings of one cell leave behind; gpufeed/schemas/ceilings.schema.yaml describes it."""

from gpufeed.document import Document

SCHEMA_VERSION = 1
DOCUMENT = Document("ceilings", "measurement of ceilings", ("{experiment}/{cell_id}.json",))

read, write = DOCUMENT.read, DOCUMENT.write
