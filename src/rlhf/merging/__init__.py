"""Model folders merged tensor by tensor: a new model without training.

merge_method.py      what a method is; method_table.py lists them, a line each, and finds a user's
methods/             one file a method; method_call.py calls one and checks its result
arithmetic.py        what several methods share: blocks, distances, the vote on signs
sparsity.py          what stays of a task vector: the largest magnitudes, or what is drawn
thresholds.py        the k-th largest magnitude of a whole model
safetensors_file.py  headers, reading and writing of single tensors
parents.py           model folders: what they hold, and whether they fit together
lora.py              adapters, merged into what is read
layers.py            which tensor belongs to which layer
parameters.py        filters, gradients, precedence
vocabulary.py        tokenizers joined, rows of embeddings put in place
merge_plan.py        what every tensor of the output is made of, before anything is written
combine.py           one tensor: read, aligned, combined, measured, rounded once; tensor_parts.py and part_measurements.py, part by part
merger.py            the plan carried out: threads, shards, resume, rename
output_folder.py     where a merged model goes; json_file.py reads the folders' settings
merge_report.py      what was merged, in numbers; side_files.py writes it with config, tokenizer and card
adapter_merge.py     adapters merged into one adapter
soup.py              uniform and greedy averages of runs
interpolation.py     two models, layer by layer
"""
