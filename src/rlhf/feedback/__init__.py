"""The human side: judgements, who can be trusted, and what becomes of them."""
