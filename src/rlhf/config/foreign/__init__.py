"""What other projects call things, in tables: one source for `rlhf config convert`, for errors about unknown keys and for docs/coming-from.md.

table        what an entry is: a key of ours with the conversion of the value, or the reason why there is none
trl          keys, values and defaults of TRL      openrlhf     flags of OpenRLHF      guide     layouts in sections
common       conversions that several of them share
names        classes and functions, and arguments of constructors
read         a file of any of these -> their keys  convert      their keys -> a recipe
"""
