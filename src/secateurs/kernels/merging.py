"""Which embeddings of a document are so alike that one can stand for them.

`group_repeats` groups embeddings of the same token, `group_nearest` goes on until few groups are left, and `equal_rows`
finds rows that are the same to the last bit. All work on one document, and number its groups in the order in which they
first occur.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .simd import compiled


@compiled
def group_repeats(
    units: NDArray[np.float32],
    token_ids: NDArray[np.int32],
    by_token: NDArray[np.int64],
    threshold: float,
    most: int,
    groups: NDArray[np.int64],
) -> int:
    """Put each embedding into the group of its token whose mean is nearest, if their cosine is above the threshold.

    units       (positions, dim): embeddings of length 1, or 0
    by_token    (positions,): the positions, those of a token side by side and in the order of the text
    most        groups of its token that an embedding is compared with, the latest ones: time grows with their number
    groups      (positions,): is filled with the group of each; the number of groups is returned

    The mean is that of the embeddings that came before. Token by token, what is compared stays in the CPU's cache.
    """
    positions, dim = units.shape
    longest = begin = 0
    for at in range(1, positions + 1):
        if at == positions or token_ids[by_token[at]] != token_ids[by_token[begin]]:
            longest, begin = max(longest, at - begin), at
    sums = np.empty((longest, dim), dtype=np.float32)  # of the groups of one token
    lengths = np.empty(longest, dtype=np.float32)
    firsts = np.empty(longest, dtype=np.int64)  # the first position of each
    count = 0
    for at in range(positions):
        i = by_token[at]
        if at > 0 and token_ids[i] != token_ids[by_token[at - 1]]:
            count = 0
        nearest, highest = count, threshold
        for group in range(max(count - most, 0), count):
            if lengths[group] > 0:
                cosine = _dot(sums, group, units, i) / lengths[group]
                if cosine > highest:
                    nearest, highest = group, cosine
        if nearest == count:
            sums[count] = 0
            firsts[count] = i
            count += 1
        groups[i] = firsts[nearest]
        for d in range(dim):
            sums[nearest, d] += units[i, d]
        lengths[nearest] = np.sqrt(_dot(sums, nearest, sums, nearest))
    count = 0
    numbers = np.empty(positions, dtype=np.int64)  # of the groups, by their first position
    for i in range(positions):
        if groups[i] == i:
            numbers[i] = count
            count += 1
        groups[i] = numbers[groups[i]]
    return count


@compiled
def group_nearest(
    means: NDArray[np.float32],
    sizes: NDArray[np.float32],
    token_ids: NDArray[np.int32],
    left: int,
    joined: NDArray[np.int64],
) -> None:
    """Join the two nearest groups until `left` groups are left: first groups of the same token, then any two.

    Near is what Ward's criterion says: joining adds least to the squared distances of embeddings from their groups'
    means. joined[i], (groups,), becomes the number of the group that group i is part of, that of its first member.
    """
    count = len(means)
    costs = np.empty((count, count), dtype=np.float32)
    for i in range(count):
        joined[i] = i
        for j in range(i):
            apart = _dot(means, i, means, i) + _dot(means, j, means, j) - 2 * _dot(means, i, means, j)
            costs[i, j] = costs[j, i] = max(apart, np.float32(0)) * sizes[i] * sizes[j] / (sizes[i] + sizes[j])
    weight = sizes.copy()
    is_left = np.ones(count, dtype=np.bool_)
    nearest = np.empty(count, dtype=np.int64)
    remaining = count
    for any_token in (False, True):
        for i in range(count):
            nearest[i] = _nearest_of(i, costs, token_ids, is_left, any_token)
        while remaining > left:
            first = -1
            for i in range(count):
                if (
                    is_left[i]
                    and nearest[i] >= 0
                    and (first < 0 or costs[i, nearest[i]] < costs[first, nearest[first]])
                ):
                    first = i
            if first < 0:
                break
            i, j = min(first, nearest[first]), max(first, nearest[first])
            for other in range(count):  # the recurrence of Lance and Williams
                if is_left[other] and other not in (i, j):
                    total = weight[i] + weight[j] + weight[other]
                    costs[i, other] = costs[other, i] = (
                        (weight[i] + weight[other]) * costs[i, other]
                        + (weight[j] + weight[other]) * costs[j, other]
                        - weight[other] * costs[i, j]
                    ) / total
            weight[i] += weight[j]
            is_left[j] = False
            remaining -= 1
            for k in range(count):
                if joined[k] == j:
                    joined[k] = i
            for other in range(count):
                if is_left[other] and (other == i or nearest[other] == i or nearest[other] == j):
                    nearest[other] = _nearest_of(other, costs, token_ids, is_left, any_token)


@compiled
def _nearest_of(
    i: int, costs: NDArray[np.float32], token_ids: NDArray[np.int32], is_left: NDArray[np.bool_], any_token: bool
) -> int:
    """The group that it costs least to join with group i, or -1 if there is none."""
    nearest = -1
    for j in range(len(costs)):
        if j == i or not is_left[j] or not (any_token or token_ids[i] == token_ids[j]):
            continue
        if nearest < 0 or costs[i, j] < costs[i, nearest]:
            nearest = j
    return nearest


@compiled
def equal_rows(words: NDArray[np.int64], groups: NDArray[np.int64]) -> int:
    """Rows as whole words, (rows, words): equal rows get the same group; gives the number of groups.

    groups  (rows,): is filled
    """
    rows, width = words.shape
    slots = 16
    while slots < 2 * rows:
        slots *= 2
    table = np.full(slots, -1, dtype=np.int64)  # the first row of each group, by the hash of the row
    count = 0
    for i in range(rows):
        mixed = np.int64(0)
        for d in range(width):
            mixed = (mixed ^ words[i, d]) * np.int64(0x2545F4914F6CDD1D)
            mixed ^= mixed >> 29
        slot = mixed & (slots - 1)
        while True:
            first = table[slot]
            if first < 0:
                table[slot] = i
                groups[i] = count
                count += 1
                break
            same = True
            for d in range(width):
                if words[first, d] != words[i, d]:
                    same = False
                    break
            if same:
                groups[i] = groups[first]
                break
            slot = (slot + 1) & (slots - 1)
    return count


@compiled
def _dot(a: NDArray[np.float32], i: int, b: NDArray[np.float32], j: int) -> np.float32:
    """a[i] . b[j]. Eight sums at once: the next product does not wait for the addition of the last."""
    dim = a.shape[1]
    whole = dim - dim % 8
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0)
    for d in range(0, whole, 8):
        s0 += a[i, d] * b[j, d]
        s1 += a[i, d + 1] * b[j, d + 1]
        s2 += a[i, d + 2] * b[j, d + 2]
        s3 += a[i, d + 3] * b[j, d + 3]
        s4 += a[i, d + 4] * b[j, d + 4]
        s5 += a[i, d + 5] * b[j, d + 5]
        s6 += a[i, d + 6] * b[j, d + 6]
        s7 += a[i, d + 7] * b[j, d + 7]
    for d in range(whole, dim):
        s0 += a[i, d] * b[j, d]
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
