"""The human side: judgments, who can be trusted, and what becomes of them."""
