from __future__ import annotations

import pytest
import torch

from nccltune.workloads.resnet50 import PARAMETERS, ResNet50


def test_the_network_has_the_known_number_of_parameters() -> None:
    with torch.device("meta"):
        network = ResNet50()

    assert sum(parameter.numel() for parameter in network.parameters()) == PARAMETERS == 25_557_032


def test_strides_are_those_of_version_1_5() -> None:
    with torch.device("meta"):
        first = ResNet50().get_submodule("layer2.0")

    assert first.get_submodule("conv1").stride == (1, 1)
    assert first.get_submodule("conv2").stride == (2, 2)


def test_outputs_equal_those_of_torchvision_under_the_same_weights() -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    theirs, ours = models.resnet50(weights=None).eval(), ResNet50().eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)

    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))
