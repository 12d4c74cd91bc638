"""How a policy holds under pressure.

perturbations  prompts changed so that a careful reader still understands them, and frames that try to talk a model out of its rules
probe_table    a secret in the system prompt, and options in other orders
flaws          what is wrong with a completion, by name
validator      both over a suite: worst case over a family, flaws with their samples
drift          how far hidden states moved from the reference on fixed prompts
"""

from __future__ import annotations
