"""Programs that a policy wrote, run against tests with as few privileges as the machine allows.

    scorer    a share of tests passed, as a reward
    cases     a row's tests, taken apart so that the expected values never enter the sandbox
    sandbox   the outside: one run of one program, with every limit, in its own folder
    scratch   that folder, and what killed processes left of theirs
    jail      from inside: namespaces, one process for each test, what came out of it
    kernel    the system calls for that, through ctypes

``jail`` and ``kernel`` use the standard library only and run in a fresh interpreter. This module imports nothing: that
interpreter starts through it.
"""

from __future__ import annotations
