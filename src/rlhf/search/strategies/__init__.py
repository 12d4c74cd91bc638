"""Search strategies, one a file; ``rlhf.config.search.STRATEGY_KINDS`` lists them."""
