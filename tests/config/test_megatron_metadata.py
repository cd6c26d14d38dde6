"""Megatron's index is read without torch; what it names is imported from nowhere."""

import io
import os
import pickle
import pickletools

import pytest

from relax_lightning.checkpoints.megatron_metadata import held_role, tensor_shapes


class Calls:
    def __init__(self, function, *arguments):
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "arguments", "name"), [(os.mkdir, ("x",), "posix.mkdir"), (eval, ("1",), "builtins.eval")]
)
def test_what_would_run_is_named_and_does_not(tmp_path, monkeypatch, function, arguments, name, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(
        pickle.dumps({"a": [Calls(function, *arguments)]}, protocol=protocol)
    )
    with pytest.raises(
        ValueError,
        match=rf"\.metadata: wanted torch's .* got (__builtin__|{name.split('.')[0]})\.{name.split('.')[1]}, which",
    ):
        tensor_shapes(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        tensor_shapes(tmp_path, trusted=True)
    assert [path.name for path in tmp_path.iterdir()] == [".metadata"]


def test_a_name_that_is_put_together_on_the_way_is_seen(tmp_path):
    # An attribute of what is on the list: pickle follows dots in names.
    data = b"\x80\x04\x8c\x05torch\x8c\x1d_utils.os.system\x93."
    data = data.replace(b"\x1d", bytes([len("_utils.os.system")]))
    assert "STACK_GLOBAL" in {op.name for op, *_ in pickletools.genops(io.BytesIO(data))}
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(ValueError, match=r"got torch\._utils\.os\.system, which would run"):
        tensor_shapes(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"garbage", pickle.dumps(3), pickle.dumps({"state_dict_metadata": 1}), b"\x80\x04K\x01Q."],
)
def test_what_is_no_index_is_one_line(tmp_path, data):
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/\.metadata cannot be read \(.*use another checkpoint$"
    ):
        tensor_shapes(tmp_path)


def test_the_role_is_told_by_the_output_layer():
    embedding = {"embedding.word_embeddings.weight": (16, 8)}
    assert held_role(embedding) == held_role(embedding | {"output_layer.weight": (16, 8)}) == "actor"
    assert held_role(embedding | {"output_layer.weight": (1, 8)}) == "critic"
    assert held_role({"encoder.weight": (16, 8)}) is None
