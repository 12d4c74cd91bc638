"""Released models in a folder: versions, aliases such as ``champion``, promotion in one step, and a history that says why.

registry    versions and aliases; nothing is lost at a kill
history     the log that decides which version an alias names

It keeps and promotes; who deserves it is decided by gates (``rlhf.evaluation.gates``).
"""

from __future__ import annotations
