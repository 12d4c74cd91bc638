"""Model folders merged tensor by tensor: a new model without training.

method.py            what a method is; method_table.py lists them, a line each, and finds a user's
methods/             one file a method
arithmetic.py        what several methods share: blocks, task vectors, trimming, dropping, consensus
safetensors_file.py  headers, reading and writing of single tensors
parents.py           model folders: what they hold, and whether they fit together
lora.py              adapters: merged into what is read, and with each other
layers.py            which tensor belongs to which layer
parameters.py        filters, gradients, precedence
vocabulary.py        tokenizers joined, rows of embeddings put in place
plan.py              what every tensor of the output is made of, before anything is written
merger.py            the plan carried out: threads, shards, resume, rename
adapter_merge.py     adapters merged into one adapter
report.py            what was merged, in numbers; the model card
soup.py              uniform and greedy averages of runs
interpolation.py     two models, layer by layer
"""
