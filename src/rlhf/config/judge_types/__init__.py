"""Who says which of two completions is better: a module for each type of judge; ``rlhf.config.judges`` has the table."""
