"""Code in C for what torch has no operation for, compiled on the machine that runs it, where that is asked for."""
