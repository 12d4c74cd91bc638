"""C code for operations for which torch makes many passes over memory, compiled on the machine that runs it if enabled."""
