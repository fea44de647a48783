"""Reference frames: evidence in text, candidates from PROJ, grades."""
