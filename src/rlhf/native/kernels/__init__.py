"""What is computed in C, as functions of tensors: pointers, structures and threads stay behind them.

``rlhf.native.compiled_mode`` says whether models that are trained or scored use them; each is compiled on its first use. Tensors are on
the CPU, in float32 or bfloat16, and C does not check shapes and types: they are the caller's responsibility.

The imports below are the list of what there is, and all that other rooms import.
"""

from __future__ import annotations

# a decoding step: R live rows, each with its prompt's tables and its own
from rlhf.native.kernels.decode_kernels import DECODE_DTYPES as DECODE_DTYPES
from rlhf.native.kernels.decode_kernels import DecodeKernels as DecodeKernels
from rlhf.native.kernels.decode_kernels import DecodeLayer as DecodeLayer
from rlhf.native.kernels.decode_kernels import DecodePass as DecodePass
from rlhf.native.kernels.decode_kernels import DecodeStep as DecodeStep
from rlhf.native.kernels.decode_kernels import DecodeWeights as DecodeWeights

# norms, rotary positions and gates, differentiable once
from rlhf.native.kernels.layer_kernels import LAYER_DTYPES as LAYER_DTYPES
from rlhf.native.kernels.layer_kernels import compiled_gate as compiled_gate
from rlhf.native.kernels.layer_kernels import compiled_norm as compiled_norm
from rlhf.native.kernels.layer_kernels import compiled_rotation as compiled_rotation

# [M, tile] logits: softmax, and sums over each row
from rlhf.native.kernels.softmax_sums import ROW_SUM_DTYPES as ROW_SUM_DTYPES
from rlhf.native.kernels.softmax_sums import RowSums as RowSums
from rlhf.native.kernels.softmax_sums import row_sums as row_sums

# [N, in] by [out, in] in tiles of bfloat16
from rlhf.native.kernels.tiled_linear import TiledLinear as TiledLinear
from rlhf.native.kernels.tiled_linear import can_tile as can_tile

# [N, heads, D] attention of prefixes and their branches, differentiable once
from rlhf.native.kernels.tree_kernel import TREE_DTYPES as TREE_DTYPES
from rlhf.native.kernels.tree_kernel import Trees as Trees
from rlhf.native.kernels.tree_kernel import attend_behind as attend_behind
from rlhf.native.kernels.tree_kernel import attend_trees as attend_trees
