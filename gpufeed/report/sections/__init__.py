"""The parts of the report, one kind of result each: data, words and figure."""
