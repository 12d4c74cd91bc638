"""Every training method by name: what it is, who published it, and the settings that make a stage be it.

A method is a kind of stage with certain settings: ``ipo`` is the kind ``dpo`` with ``loss: ipo``. Each has a module of its own here
that declares it, and a line in ``KIND_OF_METHOD``, or in ``OWN_KINDS`` where it declares a kind of stage of its own.
``rlhf methods`` prints this table; docs/methods has a page and recipes/methods a recipe for each name.

    table      KIND_OF_METHOD, METHODS: all of them by name            method     Method: what is declared
    rates      learning rates that a method declares
    *_family   what the methods of a family share: options, sources of defaults, learning rates
"""

from __future__ import annotations

from rlhf.config.methods.method import FAMILIES, Method
from rlhf.config.methods.table import (
    KIND_OF_METHOD,
    METHODS,
    MODULES,
    OWN_KINDS,
    as_settings,
    method,
    method_behind,
    methods_of_kind,
    page_of,
    recipe_of,
)

__all__ = [
    "FAMILIES",
    "KIND_OF_METHOD",
    "METHODS",
    "MODULES",
    "OWN_KINDS",
    "Method",
    "as_settings",
    "method",
    "method_behind",
    "methods_of_kind",
    "page_of",
    "recipe_of",
]
