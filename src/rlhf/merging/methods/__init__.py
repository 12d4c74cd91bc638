"""One file a merge method; ``rlhf.merging.method_table`` lists them."""
