"""The .beton file: a dataset in FFCV's format, its JPEG files as they are where FFCV decodes them rightly."""
