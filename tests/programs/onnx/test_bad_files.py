"""Files that make no sense: one kind of error, with the file, the place and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from aster_ml import Context
from aster_ml.apps.run import main
from aster_ml.errors import ArgumentError, FormatError, ShapeError, UnsupportedError
from aster_ml.nn.onnx import OnnxRunner


def value(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    """What a graph says of a value."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[Any], initializers: tuple[Any, ...] = (), opset: int = 21, shape: Any = (2,)
) -> Any:
    """A model with the input x and the output y."""
    graph = helper.make_graph(nodes, "g", [value("x", *shape)], [value("y")], list(initializers))
    graph.output[0].type.tensor_type.ClearField("shape")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def external(location: str, shape: tuple[int, ...] = (2,)) -> Any:
    """An initialiser w in a file of its own."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


ADD = helper.make_node("Add", ["x", "w"], ["y"], name="plus")
NEG = helper.make_node("Neg", ["x"], ["y"])
CYCLE = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
W = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
SHORT = TensorProto(name="w", data_type=1, dims=[3], raw_data=b"12345678")
HUGE = TensorProto(name="w", data_type=1, dims=[1 << 40, 1 << 40], raw_data=b"")
LESS = TensorProto(name="w", data_type=1, dims=[-2], raw_data=b"")
CALL = helper.make_node("f", ["x"], ["y"], domain="own")
SELF = helper.make_function("own", "f", ["x"], ["y"], [CALL], [])


def calling_itself() -> Any:
    """A model with a function that calls itself."""
    made = model([CALL])
    made.functions.append(SELF)
    made.opset_import.append(helper.make_opsetid("own", 1))
    return made


@pytest.mark.parametrize(
    "bad, text",
    [
        (model([*CYCLE, helper.make_node("Neg", ["b"], ["y"])]), "order, or in a cycle"),
        (model([ADD]), "node 'plus' .Add.: it reads 'w', which nothing gives"),
        (model([NEG, NEG]), "'y' is computed twice"),
        (model([helper.make_node("Neg", ["x"], ["z"])]), "its output 'y' is computed by no node"),
        (model([ADD], (SHORT,)), "initializer 'w': .3. elements take 12 bytes, and 8 are there"),
        (model([ADD], (HUGE,)), "more elements than any machine holds"),
        (model([ADD], (LESS,)), "a negative axis"),
        (model([ADD], (external("a.bin"),)), "give the path of the model, not bytes"),
        (model([NEG], opset=99), "it wants version 99"),
        (model([NEG], shape=(-7,)), "value 'x': a negative axis"),
        (model([helper.make_node("Neg", ["x", "x"], ["y"])]), "at most 1 and 1 are its own"),
        (model([helper.make_node("Neg", ["x"], ["y"], bogus=1)]), "bogus: no attributes of it"),
        (calling_itself(), "calls itself"),
        (b"\xff\xff\xff", "truncated"),
        (b"", "there is no graph"),
        (7, "a path, bytes or a ModelProto is wanted"),
    ],
)  # fmt: skip
def test_a_bad_model_is_refused_before_it_runs(bad: Any, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        OnnxRunner(bad)


@pytest.mark.parametrize(
    "location, text",
    [
        ("../secret.bin", "lies outside of the model's folder"),
        ("/etc/hostname", "a path within the model's folder"),
        ("link.bin", "lies outside of the model's folder"),
        ("absent.bin", "absent.bin', is missing"),
        ("short.bin", "8 bytes|has 4 bytes"),
        ("", "a path within the model's folder"),
    ],
)
def test_data_outside_stays_in_the_folder(tmp_path: Path, location: str, text: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "short.bin").write_bytes(bytes(4))
    (folder / "m.onnx").write_bytes(model([ADD], (external(location),)).SerializeToString())
    with pytest.raises(FormatError, match=text) as found:
        OnnxRunner(folder / "m.onnx")({"x": np.ones(2, np.float32)})
    assert str(folder / "m.onnx") in str(found.value)
    assert "initializer 'w'" in str(found.value)


def test_data_outside_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.asarray([1, 2], np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(model([ADD], (external("w.bin"),)).SerializeToString())
    runner = OnnxRunner(tmp_path / "m.onnx")
    for _ in range(4):
        assert runner({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 3]


def untyped() -> Any:
    """A model whose output has no type."""
    made = model([NEG])
    made.graph.output[0].ClearField("type")
    return made


def changed(**fields: Any) -> Any:
    """A model with other fields of its own."""
    made = model([NEG])
    for name, given in fields.items():
        setattr(made, name, given)
    return made


def with_attribute(**fields: Any) -> Any:
    """A model of a Softmax whose attribute axis has these fields."""
    made = model([helper.make_node("Softmax", ["x"], ["y"], axis=0)])
    attribute = made.graph.node[0].attribute[0]
    for name, given in fields.items():
        setattr(attribute, name, given)
    return made


def twice() -> Any:
    """A model of a Softmax with two attributes axis."""
    made = with_attribute()
    made.graph.node[0].attribute.add().CopyFrom(made.graph.node[0].attribute[0])
    return made


def in_a_branch() -> Any:
    """A model whose attribute of another type is in a branch."""
    inner = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["z"], axis=1.5)], "inner", [], [value("z", 2)]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value_int=1),
        helper.make_node("Cast", ["c"], ["b"], to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["y"], then_branch=inner, else_branch=inner),
    ]
    return model(nodes)


DOUBLE = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], double_data=[1.0, 2.0])
BOTH = TensorProto(name="w", data_type=1, dims=[2], raw_data=bytes(8), float_data=[1.0, 2.0])
NOTHING = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])


@pytest.mark.parametrize(
    "bad, text",
    [
        (untyped(), "value 'y': it has no type"),
        (changed(ir_version=0), "ir_version is 0"), (changed(ir_version=99), "ir_version is 99"),
        (with_attribute(type=2, f=1.5), "axis is of type 2, and has f, i for i"),
        (with_attribute(type=1), "axis is of type 1, and has i for f"),
        (twice(), "its attribute axis is there twice"),
        (in_a_branch(), "node '' .Softmax.: its attribute axis is of type 1, and INT"),
        (model([ADD], (DOUBLE,)), "initializer 'w': .* are in float_data or raw_data; double_data"),
        (model([ADD], (BOTH,)), "initializer 'w': .*; float_data, raw_data has some"),
        (model([ADD], (NOTHING,)), "initializer 'w': .*; no field has some"),
        (model([helper.make_node("Gelu", ["x"], ["y"])], opset=11), "has no such operator"),
    ],
)  # fmt: skip
def test_what_the_checker_refuses_is_refused(bad: Any, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        OnnxRunner(bad)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(bad)


def test_loops_without_end_are_named() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["s", "s"], ["t"])],
        "body",
        [value("i", kind=TensorProto.INT64), value("c", kind=TensorProto.BOOL), value("s", 2)],
        [value("d", kind=TensorProto.BOOL), value("t", 2)],
    )
    count = helper.make_tensor("n", TensorProto.INT64, [], [1 << 52])
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body, name="forever")
    runner = OnnxRunner(model([loop], (count,)), device="PYTHON")
    with (
        Context(LOOP_LIMIT=50),
        pytest.raises(UnsupportedError, match=r"node 'forever' .*50 iterations"),
    ):
        runner({"x": np.ones(2, np.float32)})
    ten = helper.make_tensor("n", TensorProto.INT64, [], [10])
    with Context(LOOP_LIMIT=10):
        runner = OnnxRunner(model([loop], (ten,)), device="PYTHON")
        assert runner({"x": np.ones(2, np.float32)})["y"].tolist() == [1024, 1024]


def test_operators_that_are_absent_are_named_with_their_nodes() -> None:
    nodes = [
        helper.make_node("Warp", ["x"], ["a"], name="one"),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    with pytest.raises(
        UnsupportedError, match=r"Warp version 21 \(wanted by node 'one' \(Warp\)\)"
    ):
        OnnxRunner(model(nodes))


def test_inputs_that_do_not_fit_are_named() -> None:
    runner = OnnxRunner(model([ADD], (W,)))
    with pytest.raises(ArgumentError, match=r"the model wants \['x'\]"):
        runner({"z": np.ones(2)})
    with pytest.raises(ShapeError, match=r"input 'x' has the shape \[3\]"):
        runner({"x": np.ones(3, np.float32)})
    with pytest.raises(TypeError, match="float32 is wanted"):
        runner({"x": np.ones(2, np.int32)})


def test_a_node_that_cannot_take_its_values_is_named() -> None:
    runner = OnnxRunner(model([ADD], (W,), shape=("n",)))
    with pytest.raises(FormatError, match="node 'plus'"):
        runner({"x": np.ones(3, np.float32)})


def test_shapes_that_change_give_their_own_results() -> None:
    runner = OnnxRunner(model([NEG], shape=("n",)))
    for size in (1, 2, 5, 2, 1, 5, 2, 2, 1, 1):
        assert runner({"x": np.full(size, size, np.float32)})["y"].tolist() == [-size] * size


def test_the_command_shows_and_compares(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model([ADD], (W,), shape=("n",)).SerializeToString())
    assert main([str(path), "--size", "n=2", "--runs", "2"]) == 0
    said = capsys.readouterr().out
    assert "x  float32[n]" in said
    assert "Add 1" in said
    assert "kernels  1 in one recording" in said
    assert main([str(tmp_path / "absent.onnx")]) == 1
    assert "there is no such file" in capsys.readouterr().err
