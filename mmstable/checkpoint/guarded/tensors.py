"""Real tensors of checked nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmstable.checkpoint.guarded.errors import Refused
from mmstable.checkpoint.guarded.nodes import SparseNode, TensorNode


def build_tensor(
    node: TensorNode, quantizer: Sequence[Any], with_values: bool
) -> Tensor:
    """A dense or quantized tensor.

    Args:
        node (TensorNode): What it looks like; it fits into its storage.
        quantizer (Sequence): Parameters of a quantized tensor.
        with_values (bool): Whether it has a content.
    """
    if not with_values:
        return torch.empty_strided(
            node.size, node.stride, dtype=_meta_dtype(node), device='meta'
        )
    storage = node.storage.data
    if storage is None:
        raise Refused('a tensor without its storage')
    if quantizer:
        tensor = _empty_quantized(node, quantizer, storage.device)
    else:
        tensor = torch.empty(0, dtype=node.dtype, device=storage.device)
    tensor.set_(storage, node.offset, node.size, node.stride)  # type: ignore
    if node.bits:
        torch._utils.set_tensor_metadata(tensor, node.bits)
    if node.requires_grad:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise Refused('a tensor of integers with gradients')
        tensor.requires_grad_()
    return tensor


def build_sparse(
    node: SparseNode, parts: list[Tensor], with_values: bool
) -> Tensor:
    """A sparse tensor, whose indices are looked at.

    Args:
        node (SparseNode): What it looks like.
        parts (list[Tensor]): Indices and values.
        with_values (bool): Whether it has a content.
    """
    if not with_values:
        return torch.empty(0, dtype=parts[-1].dtype, device='meta')
    try:
        if node.layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(
                parts[0],
                parts[1],
                node.size,
                is_coalesced=node.is_coalesced,
                check_invariants=True,
            )
        return torch.sparse_compressed_tensor(
            parts[0],
            parts[1],
            parts[2],
            node.size,
            layout=node.layout,
            check_invariants=True,
        )
    except (RuntimeError, TypeError, ValueError) as error:
        raise Refused('a sparse tensor with wrong indices') from error


def _empty_quantized(
    node: TensorNode, quantizer: Sequence[Any], device: torch.device
) -> Tensor:
    if len(quantizer) == 3:
        return torch._empty_affine_quantized(
            [0],
            scale=quantizer[1],
            zero_point=quantizer[2],
            dtype=node.dtype,
            device=device,
        )
    return torch._empty_per_channel_affine_quantized(
        node.size,
        scales=quantizer[1],
        zero_points=quantizer[2],
        axis=quantizer[3],
        dtype=node.dtype,
        device=device,
    )


def _meta_dtype(node: TensorNode) -> torch.dtype:
    return torch.uint8 if node.quantizer else node.dtype
