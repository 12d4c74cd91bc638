"""People comparing models: blinded tasks, the answers of other tools, and what the judgments say of the models."""
