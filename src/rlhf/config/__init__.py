"""Settings: strict, immutable classes, read from YAML and checked before anything heavy is loaded. Imports no torch.

base            BaseConfig, the strict base; apply_overrides (key.sub=value)
named_table     NamedTable: names that a process may add to
yaml_text       read_yaml; YAML to plain values, bounded, and without the surprises of YAML 1.1
error_messages  what pydantic found wrong, in the words of anyone who wrote the file
model           how a model is loaded and adapted
rewards         who judges completions
guidelines      what annotators are asked to look at, and the overall rating that follows
guards          what watches a training run, its limits and what an alarm does
training        what every trainer shares, and the settings of each algorithm
stages          the table of kinds of stages; a kind's class is imported when it is looked up
lazy_union      a choice between kinds of which only the chosen one's class is built
recipe          named stages and their inputs: what `rlhf run` runs
assets          the folder that ${RLHF_ASSETS} names, and what to say where it is not there
presets         whole recipes by model size
method_hints    the answer to a method's name where it is not a choice
method_options  a method's settings, and where their defaults come from
schema          settings as people read them: name, type, default, meaning
descriptions    the text below each field, read when asked for
"""
