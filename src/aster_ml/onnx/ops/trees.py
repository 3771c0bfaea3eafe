"""Computes ensembles of decision trees of ai.onnx.ml, as tensor programs.

All rows go down all trees together: a table of nodes says which column is compared with what and
where to go on; a leaf goes on to itself, so as many steps as the deepest tree has bring each row to
its leaves, whose votes are folded. The attributes of the three operators become one `Forest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.errors import FormatError, ShapeError, UnsupportedError
from aster_ml.onnx.ops.ml import POSTS, labels_of, picked, post, two_columns
from aster_ml.onnx.ops.registry import ML, Array, Value, op

Ints = list[int]
Floats = list[float]
# What of "less, equal, greater, not a number" a comparison holds for, as bits.
LESS, EQUAL, GREATER, NAN = 1, 2, 4, 8
MODES = {
    "BRANCH_LEQ": LESS | EQUAL, "BRANCH_LT": LESS, "BRANCH_GTE": GREATER | EQUAL,
    "BRANCH_GT": GREATER, "BRANCH_EQ": EQUAL, "BRANCH_NEQ": LESS | GREATER | NAN, "LEAF": 0,
}  # fmt: skip
BY_NUMBER = list(MODES.values())[:6]
MEMBER = 6
# Each step down is a few nodes of the graph of Tensors.
MOST_STEPS = 512
AVERAGE, SUM, MIN, MAX = range(4)


@dataclass
class Forest:
    """Nodes of all trees; `children` are [nodes, 2]: where to go where the comparison fails, holds.

    `votes` [nodes, targets] are what leaves give, `has_vote` whether they give any.
    """

    columns: Array
    splits: Array
    holds: Array
    children: Array
    votes: Array
    has_vote: Array
    roots: Array
    depth: int = 0

    def check(self) -> Forest:
        """Counts the steps to the deepest leaf. Raises: FormatError for trees that are none."""
        count = len(self.columns)
        for name, places in (("roots", self.roots), ("children", self.children)):
            if places.size and not 0 <= places.min() <= places.max() < count:
                raise FormatError(f"{name} outside of the {count} nodes of its trees")
        if self.columns.size and self.columns.min() < 0:
            raise FormatError("a negative column")
        inner = np.any(self.children != np.arange(count)[:, None], 1)
        at = np.unique(self.roots)
        while inner[at].any():
            at = np.unique(self.children[at[inner[at]]])
            self.depth += 1
            if self.depth > min(count, MOST_STEPS):
                if self.depth > count:
                    raise FormatError("a tree that comes back to one of its nodes has no end")
                raise UnsupportedError(f"a tree of more than {MOST_STEPS} steps")
        return self

    def leaves(self, x: Tensor) -> Tensor:
        """The leaf in each tree to which each row of x [rows, columns] comes: [rows, trees]."""
        if self.columns.size and self.columns.max() >= x.shape[1]:
            raise ShapeError(f"column {self.columns.max()} of {list(x.shape)}")
        device = x.device
        columns, holds, splits, children = (
            Tensor(np.ascontiguousarray(table), device=device)
            for table in (
                self.columns.astype(np.int32), self.holds.astype(np.int32),
                self.splits.astype(np.float64 if x.dtype is dtypes.float64 else np.float32),
                self.children.reshape(-1).astype(np.int32),
            )
        )  # fmt: skip
        at = Tensor(self.roots.astype(np.int32), device=device)
        at = at.reshape((1, -1)).expand((x.shape[0], len(self.roots)))
        for _ in range(self.depth):
            value, split = x.gather(1, columns[at]), splits[at]
            kind = (value < split).where(LESS, value.eq(split).where(EQUAL, GREATER))
            kind = value.isnan().where(NAN, kind)
            is_hit = (kind.cast(dtypes.int32) & holds[at]).ne(0).cast(dtypes.int32)
            at = children[at * 2 + is_hit].contiguous()
        return at

    def fold(self, x: Tensor, how: int) -> Tensor:
        """Folds the leaves of each row, [rows, targets]: mean, sum, least or greatest."""
        rows, trees, targets = x.shape[0], len(self.roots), self.votes.shape[1]
        if not trees or not rows:
            return Tensor.zeros((rows, targets), dtype=x.dtype, device=x.device)
        at = self.leaves(x)
        kind = np.float64 if x.dtype is dtypes.float64 else np.float32
        votes = Tensor(np.ascontiguousarray(self.votes, kind), device=x.device)[at]
        if how in (AVERAGE, SUM):
            total = votes.sum(1)
            return total / trees if how == AVERAGE else total
        there = Tensor(np.ascontiguousarray(self.has_vote), device=x.device)[at]
        ends = [there.where(votes, np.inf).min(1), there.where(votes, -np.inf).max(1)]
        return there.any(1).where(ends[how - MIN], 0)


def numbers(x: Tensor) -> Tensor:
    """Rows of numbers that thresholds are compared with."""
    rows = x.reshape((1, -1)) if x.ndim == 1 else x
    if rows.ndim != 2:
        raise ShapeError(f"rows of features are wanted, given {list(x.shape)}")
    return rows if rows.dtype is dtypes.float64 else rows.cast(dtypes.float32)


def equal_lengths(**tables: Any) -> None:
    """Raises FormatError for tables of nodes that are not all of one length."""
    counts = {name: len(table) for name, table in tables.items()}
    if len(set(counts.values())) > 1:
        raise FormatError("tables of " + ", ".join([f"{n} {c}" for n, c in counts.items()]))


def forest_of_ids(given: dict[str, Any], leaf: str, targets: int) -> Forest:
    """The trees of the older operators: nodes are named by tree and number, votes by node."""
    trees, nodes = given.get("nodes_treeids", []), given.get("nodes_nodeids", [])
    splits = either(given, "nodes_values", len(nodes))
    modes = given.get("nodes_modes", [])
    yes, no = given.get("nodes_truenodeids", []), given.get("nodes_falsenodeids", [])
    tracks = given.get("nodes_missing_value_tracks_true") or [0] * len(nodes)
    columns = given.get("nodes_featureids", [])
    equal_lengths(
        nodes_treeids=trees, nodes_nodeids=nodes, nodes_values=splits, nodes_modes=modes,
        nodes_truenodeids=yes, nodes_falsenodeids=no, nodes_featureids=columns,
        nodes_missing_value_tracks_true=tracks,
    )  # fmt: skip
    places = {key: at for at, key in enumerate(zip(trees, nodes))}
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise UnsupportedError(f"nodes_modes {unknown[0]!r}; there are {', '.join(MODES)}")
    children = []
    for at, (tree, mode) in enumerate(zip(trees, modes)):
        ends = (at, at)
        if mode != "LEAF":
            keys = (tree, no[at]), (tree, yes[at])
            if any(key not in places for key in keys):
                raise FormatError(f"node {nodes[at]} of tree {tree} goes on to one that is absent")
            ends = places[keys[0]], places[keys[1]]
        children.append(ends)
    holds = [MODES[mode] | (NAN if track else 0) for mode, track in zip(modes, tracks)]
    ids = given.get(f"{leaf}_ids", [])
    weights = either(given, f"{leaf}_weights", len(ids))
    of_trees, of_nodes = given.get(f"{leaf}_treeids", []), given.get(f"{leaf}_nodeids", [])
    equal_lengths(
        **{f"{leaf}_ids": ids, f"{leaf}_weights": weights,
           f"{leaf}_treeids": of_trees, f"{leaf}_nodeids": of_nodes}
    )  # fmt: skip
    votes, has_vote = np.zeros((len(nodes), targets)), np.zeros((len(nodes), targets), np.bool_)
    for key, target, weight in zip(zip(of_trees, of_nodes), ids, weights):
        if key not in places or not 0 <= target < targets:
            raise FormatError(f"a vote of node {key[1]} of tree {key[0]} for target {target}")
        votes[places[key], target] += weight
        has_vote[places[key], target] = True
    # The first node of a tree is its root, wherever its number stands.
    first: dict[int, int] = {}
    for at, tree in enumerate(trees):
        first.setdefault(tree, at)
    return Forest(
        np.asarray(columns, np.int64), np.asarray(splits), np.asarray(holds, np.int64),
        np.asarray(children, np.int64).reshape(-1, 2), votes, has_vote,
        np.asarray(list(first.values()), np.int64),
    ).check()  # fmt: skip


def either(given: dict[str, Any], name: str, count: int) -> Array:
    """An attribute of floats, or of the same name with `_as_tensor`; zeros without both."""
    values = given.get(f"{name}_as_tensor")
    values = given.get(name) if values is None else values
    return np.zeros(count) if values is None else np.asarray(values, np.float64).reshape(-1)


def with_base(scores: Tensor, base: Array) -> Tensor:
    """Scores with the values that every row has from the start."""
    if not base.size:
        return scores
    if base.size not in (1, scores.shape[1]):
        raise FormatError(f"{base.size} base values for {scores.shape[1]} scores")
    return scores + Tensor(base, device=scores.device).cast(scores.dtype)


FOLDS = {"AVERAGE": AVERAGE, "SUM": SUM, "MIN": MIN, "MAX": MAX}


NODES = frozenset(
    """nodes_falsenodeids nodes_featureids nodes_hitrates nodes_hitrates_as_tensor
    nodes_missing_value_tracks_true nodes_modes nodes_nodeids nodes_treeids nodes_truenodeids
    nodes_values nodes_values_as_tensor base_values base_values_as_tensor""".split()
)
TARGETS = frozenset(
    "target_ids target_nodeids target_treeids target_weights target_weights_as_tensor".split()
)
CLASSES = frozenset(
    "class_ids class_nodeids class_treeids class_weights class_weights_as_tensor".split()
)


@op("TreeEnsembleRegressor", domain=ML, rest=NODES | TARGETS)
def tree_ensemble_regressor(
    x: Tensor,
    *,
    aggregate_function: str = "SUM",
    n_targets: int = 1,
    post_transform: str = "NONE",
    call: Any,
    **rest: Any,
) -> Tensor:
    """Sums (or means, or extremes) of what the leaves give to each target, as float32."""
    if aggregate_function not in FOLDS:
        raise UnsupportedError(f"aggregate_function {aggregate_function!r}")
    forest = call.prepared(lambda: forest_of_ids(rest, "target", n_targets))
    scores = forest.fold(numbers(x), FOLDS[aggregate_function])
    scores = with_base(scores, either(rest, "base_values", 0))
    return post(scores.cast(dtypes.float32), post_transform)


@op("TreeEnsembleClassifier", domain=ML, rest=NODES | CLASSES)
def tree_ensemble_classifier(
    x: Tensor,
    *,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: list[str] | None = None,
    post_transform: str = "NONE",
    call: Any,
    **rest: Any,
) -> Value:
    """The class that the leaves give most to, and what they give to each class, as float32.

    Of two classes the leaves may vote for one only: above 0.5 (0 where a vote is negative) it is
    the second one.
    """
    labels = labels_of(classlabels_int64s, classlabels_strings)
    forest = call.prepared(lambda: forest_of_ids(rest, "class", len(labels)))
    scores = forest.fold(numbers(x), SUM)
    base = either(rest, "base_values", 0)
    voted = sorted({*rest.get("class_ids", ())})
    if len(labels) == 2 and len(voted) == 1:
        one = with_base(scores[:, voted[0] : voted[0] + 1], base[-1:])
        is_share = bool(np.all(either(rest, "class_weights", 0) >= 0))
        best = (one > (0.5 if is_share else 0.0)).cast(dtypes.int32).reshape((-1,))
        shown = one.cast(dtypes.float32)
        if voted[0]:
            shown = post(shown.pad(((0, 0), (1, 0))), post_transform)
        else:
            shown = two_columns(shown, post_transform, is_share)
        return picked(best, labels, call), shown
    scores = with_base(scores, base)
    shown = post(scores.cast(dtypes.float32), post_transform)
    return picked(scores.argmax(-1), labels, call), shown


LEAVES = frozenset(
    """leaf_targetids leaf_weights membership_values nodes_falseleafs nodes_falsenodeids
    nodes_featureids nodes_hitrates nodes_missing_value_tracks_true nodes_modes nodes_splits
    nodes_trueleafs nodes_truenodeids tree_roots""".split()
)


@op("TreeEnsemble", domain=ML, rest=LEAVES)
def tree_ensemble(
    x: Tensor,
    *,
    aggregate_function: int = SUM,
    n_targets: int = 1,
    post_transform: int = 0,
    call: Any,
    **rest: Any,
) -> Tensor:
    """Sums (or means, or extremes) of the leaves that each row comes to in each tree."""
    if not 0 <= aggregate_function <= MAX or not 0 <= post_transform < len(POSTS):
        raise UnsupportedError(
            f"aggregate_function {aggregate_function}, post_transform {post_transform}"
        )
    forest = call.prepared(lambda: forest_of_leaves(rest, n_targets))
    scores = forest.fold(numbers(x), aggregate_function).cast(x.dtype)
    return post(scores, POSTS[post_transform])


def member_sets(modes: Ints, values: Array | None) -> list[Floats]:
    """The numbers of each node that asks for members, in their order; NaN ends a set."""
    sets: list[Floats] = [[] for mode in modes if mode == MEMBER]
    rest = iter([] if values is None else values.reshape(-1).tolist())
    for members in sets:
        for value in rest:
            if value != value:
                break
            members.append(value)
    return sets


def forest_of_leaves(given: dict[str, Any], targets: int) -> Forest:
    """The trees of TreeEnsemble: nodes and leaves by their places, leaves behind the nodes.

    A node that asks whether a number is one of a set becomes a chain of comparisons.
    """
    modes = given["nodes_modes"].reshape(-1).tolist()
    splits = given["nodes_splits"].astype(np.float64).reshape(-1).tolist()
    columns = list(given["nodes_featureids"])
    count = len(modes)
    tracks = given.get("nodes_missing_value_tracks_true") or [0] * count
    leaves, weights = given["leaf_targetids"], given["leaf_weights"].reshape(-1)
    equal_lengths(leaf_targetids=leaves, leaf_weights=weights)
    ways = [(given[f"nodes_{end}nodeids"], given[f"nodes_{end}leafs"]) for end in ("false", "true")]
    equal_lengths(
        nodes_modes=modes, nodes_splits=splits, nodes_featureids=columns, tracks=tracks,
        **{f"way {i}": part for i, part in enumerate([p for way in ways for p in way])},
    )  # fmt: skip
    sets = member_sets(modes, given.get("membership_values"))
    more = sum([max(len(members) - 1, 0) for members in sets])
    first_leaf = count + more
    ends = [
        [first_leaf + at if leaf else at for at, leaf in zip(places, leafs)]
        for places, leafs in ways
    ]
    if any(not 0 <= at < (first_leaf + len(leaves)) for way in ends for at in way):
        raise FormatError(f"a node goes on to one outside of the {count} nodes")
    children, holds = [list(pair) for pair in zip(*ends)], []
    for at in range(count):
        track = NAN if tracks[at] else 0
        if modes[at] != MEMBER:
            if not 0 <= modes[at] < MEMBER:
                raise FormatError(f"nodes_modes {modes[at]}")
            holds.append(BY_NUMBER[modes[at]] | track)
            continue
        members, end, last = sets.pop(0), children[at], at
        holds.append((EQUAL if members else 0) | track)
        splits[at] = members[0] if members else 0.0
        for value in members[1:]:
            children[last] = [len(children), end[1]]
            last = len(children)
            children.append(list(end))
            columns.append(columns[at])
            splits.append(value)
    holds += [EQUAL] * more
    if any(not 0 <= target < targets for target in leaves):
        raise FormatError(f"leaf_targetids outside of the {targets} targets")
    total = first_leaf + len(leaves)
    votes, has_vote = np.zeros((total, targets)), np.zeros((total, targets), np.bool_)
    own = np.arange(first_leaf, total)
    votes[own, leaves], has_vote[own, leaves] = weights, True
    children += [[at, at] for at in own.tolist()]
    nothing = [0] * len(leaves)
    return Forest(
        np.asarray(columns + nothing, np.int64), np.asarray(splits + nothing, np.float64),
        np.asarray(holds + nothing, np.int64), np.asarray(children, np.int64).reshape(-1, 2),
        votes, has_vote, np.asarray(given["tree_roots"], np.int64),
    ).check()  # fmt: skip
