"""Which samples go through the model together: optimizer steps of an iteration, micro-batches of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def optimizer_steps(num_samples: int, step_size: int | None, seed: int | None) -> list[list[int]]:
    """Rows of each optimizer step of one pass.

    Args:
        num_samples: Samples of the iteration.
        step_size: Samples an optimizer step; None: all in one.
        seed: Of the order in which samples fall to the steps; None: as they come. One step needs no order.
    """
    size = step_size or num_samples
    if seed is None or size >= num_samples:
        order = list(range(num_samples))
    else:
        order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[start : start + size] for start in range(0, num_samples, size)]


def microbatches(
    lengths: Sequence[int],
    rows: Sequence[int],
    *,
    max_samples: int | None = None,
    max_tokens: int,
) -> list[list[int]]:
    """Rows of each micro-batch: a fixed number of samples, or as many as fit into a number of tokens.

    Args:
        lengths: Tokens of every sample of the record.
        rows: The samples to group.
        max_samples: Samples a micro-batch, in the given order; None packs by tokens, longest samples first, so that
            like lengths meet.
        max_tokens: Tokens a micro-batch when packing; a longer sample gets one of its own.
    """
    if max_samples is not None:
        return [list(rows[start : start + max_samples]) for start in range(0, len(rows), max_samples)]
    groups: list[list[int]] = []
    room = 0
    for row in sorted(rows, key=lambda r: (-lengths[r], r)):
        if not groups or lengths[row] > room:
            groups.append([])
            room = max_tokens
        groups[-1].append(row)
        room -= lengths[row]
    return groups


def deal(lengths: Sequence[int], rows: Sequence[int], num_replicas: int) -> list[list[int]]:
    """Rows of each data-parallel replica, with about as many tokens each.

    Longest first, each to the replica that has least (Graham 1969, "Bounds on Multiprocessing Timing Anomalies"); the
    outcome depends on nothing else, so that every rank finds the same. A replica gets none where rows are fewer.

    Args:
        lengths: Tokens of every sample of the record.
        rows: The samples to deal out.
        num_replicas: Data-parallel replicas of the model.
    """
    shares: list[list[int]] = [[] for _ in range(num_replicas)]
    tokens = [0] * num_replicas
    for row in sorted(rows, key=lambda r: (-lengths[r], r)):
        least = min(range(num_replicas), key=lambda replica: (tokens[replica], replica))
        shares[least].append(row)
        tokens[least] += lengths[row]
    order = {row: place for place, row in enumerate(rows)}
    return [sorted(share, key=order.__getitem__) for share in shares]
