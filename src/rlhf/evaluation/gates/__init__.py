"""Whether a candidate may take the champion's place: requirements, each decided from measurements that are kept.

measurements    what was measured of candidate and champion; all that a decision reads
gate            requirements together: Holm for failures, all must pass
evidence        the file that replays a decision
at_least, at_most, better, no_alarm, non_inferior, own    one kind of requirement each
"""

from __future__ import annotations
