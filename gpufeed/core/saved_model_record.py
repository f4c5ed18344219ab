"""What is known of a model, and of its evaluation: gpufeed/core/schemas/{model,evaluation}.schema.yaml."""

from gpufeed.core.document import Document

SCHEMA_VERSION = 1
MODEL = Document("model", "model")
EVALUATION = Document("evaluation", "evaluation", ("{experiment}/{cell_id}/evaluation.json",))
