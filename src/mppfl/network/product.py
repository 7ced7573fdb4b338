"""Sparse matrix times one or two columns, in parallel where that pays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mppfl.network.graph import SparseMatrix

PARALLEL_ABOVE = 1_000_000  # links; below, SciPy on one core is as fast and needs no compiler


def times(matrix: SparseMatrix, x: Any, scale: float = 1.0, plus: Any = None) -> Any:
    """plus + scale · matrix @ x for a csr_array and a vector, or an array of columns, of the matrix's own kind."""
    if matrix.nnz < PARALLEL_ABOVE or x.dtype != matrix.dtype or (x.ndim == 2 and x.shape[1] != 2):
        product = matrix @ x
        if scale != 1.0:
            product *= scale
        if plus is not None:
            product += plus
        return product
    from mppfl.network import kernels

    out = np.empty_like(x, order="C")
    kernel = kernels.csr_times_vector if x.ndim == 1 else kernels.csr_times_pair
    added = np.empty((0,) * x.ndim, dtype=x.dtype) if plus is None else np.ascontiguousarray(plus)
    cuts = kernels.even_cuts(matrix.indptr)
    kernel(matrix.indptr, matrix.indices, matrix.data, np.ascontiguousarray(x), x.dtype.type(scale), added, cuts, out)
    return out
