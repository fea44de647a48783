"""Iceberg tables: open, commit, tag, read back. What a column means is its own room's business."""
