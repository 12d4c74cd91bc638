"""Code in C for what takes torch many passes over memory, compiled on the machine that runs it, where that is asked for."""
