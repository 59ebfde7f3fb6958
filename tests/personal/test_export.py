import json

import numpy as np
import pytest

from calibre.errors import UserError
from calibre.personal import export
from calibre.personal.export import export_onnx
from tests.personal.made_bundle import images, make_bundle

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'calibre-fl[export]'")
pytest.importorskip("onnxscript", reason="pip install 'calibre-fl[export]'")


@pytest.mark.parametrize("encoders", [1, 2])
def test_the_file_answers_as_the_bundle_does(tmp_path, encoders):
    """Any batch size, from raw uint8 images: preprocessing and temperature are in the graph."""
    bundle = make_bundle(parts=encoders)
    real, _ = images(7, first_seed=900)
    done = export_onnx(bundle, tmp_path / "m.onnx", real)
    assert done.images == 64 + 21
    assert done.difference <= 1e-4
    assert done.megabytes == pytest.approx((tmp_path / "m.onnx").stat().st_size / 1e6)
    assert done.onnx_ms > 0 < done.torch_ms
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert session.get_inputs()[0].type == "tensor(uint8)"
    for batch in (real[:1], real, real[:13]):
        probabilities, distances = session.run(None, {"images": batch})
        expected = bundle.answers(batch)
        np.testing.assert_allclose(probabilities, expected[0], atol=1e-5)
        np.testing.assert_allclose(distances, expected[1], rtol=1e-4)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["calibre.classes"]) == ["red", "green", "blue"]
    assert json.loads(facts["calibre.limit"]) == bundle.limit
    usual = bundle.card.usual
    assert json.loads(facts["calibre.usual"]) == usual.model_dump(mode="json")


def averages() -> bytes:
    """A graph of the right shape and the wrong answers: the mean of every channel."""
    from onnx import TensorProto, helper

    outputs = {"probabilities": (["N", 3], [1, 2]), "distances": (["N"], [1, 2, 3])}
    nodes = [helper.make_node("Cast", ["images"], ["x"], to=TensorProto.FLOAT)]
    nodes += [
        helper.make_node("ReduceMean", ["x"], [name], axes=axes, keepdims=0)
        for name, (_, axes) in outputs.items()
    ]
    graph = helper.make_graph(
        nodes,
        "averages",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", 12, 12, 3])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, (shape, _) in outputs.items()
        ],
    )
    opset = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def test_a_graph_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_graph", lambda bundle: averages())
    with pytest.raises(UserError, match="does not answer as the bundle does"):
        export_onnx(make_bundle(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(
        UserError, match=r"needs no_such_package: pip install 'calibre-fl\[export\]'"
    ):
        export_onnx(make_bundle(), tmp_path / "m.onnx")
