"""Places: gazetteers, names to shapes with reasons; abstains rather than guess."""
