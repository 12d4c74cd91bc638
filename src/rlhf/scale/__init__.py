"""Resource estimates before a run: memory by component, time per step, and a parallelism strategy.

gpus       published figures of GPUs               machine    what this machine can do, measured now
shape      a model's sizes, without its weights    samples    how long rows, prompts and completions are
work       what a step of each kind of stage does  costs      seconds and bytes of a pass, from figures alone
probe      the same, measured on a thin copy       memory     bytes by component
strategy   what to do with them                    plan       all of it, for every training stage of a recipe

Of clusters: links, clusters and communication (published and given figures), rank_memory, layouts and layout_seconds (what a rank holds and
does), engine_speed and pipelines (rollouts as an event-driven simulation), cluster_pipelines and cluster_plan (all of it).

size_estimate goes by a number of parameters alone, with the shapes of model_families.
"""
