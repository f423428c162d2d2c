"""The rows of the table of layers: each names a layer that exists, fires once, and has its channels where it says."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

import momentex

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "docs/which-layer.md")


# Of each family a member that builds fast: the names and the order of the layers are those of the large ones.


def small_resnet(groups: int, width_per_group: int):
    options = {"groups": groups, "width_per_group": width_per_group}
    return lambda weights=None: ResNet(Bottleneck, [1, 1, 1, 1], **options)


def small_densenet(weights: None = None) -> nn.Module:
    return models.DenseNet(growth_rate=4, block_config=(2, 2, 2, 2), num_init_features=16)


def small_vit(weights: None = None) -> nn.Module:
    return VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32)


def small_swin(weights: None = None) -> nn.Module:
    return SwinTransformer([4, 4], embed_dim=24, depths=[2, 2], num_heads=[2, 2], window_size=[4, 4])


def plain_vgg(build):
    return lambda weights=None: build(weights=weights, init_weights=False)


# The words of the table's first column -> what builds such a model, and the channels at its layer.
FAMILIES = {
    "ResNet": (models.resnet18, 64),
    "ResNeXt": (small_resnet(32, 4), 64),
    "Wide ResNet": (small_resnet(1, 128), 64),
    "DenseNet": (small_densenet, 16),
    "EfficientNet": (models.efficientnet_b0, 32),
    "MobileNet": (models.mobilenet_v3_small, 16),
    "MobileNet-V2": (models.mobilenet_v2, 32),
    "ConvNeXt": (models.convnext_tiny, 96),
    "RegNet": (models.regnet_y_400mf, 32),
    "ShuffleNet": (models.shufflenet_v2_x0_5, 24),
    "VGG-11-BN": (plain_vgg(models.vgg11_bn), 64),
    "VGG-16-BN": (plain_vgg(models.vgg16_bn), 64),
    "ViT": (small_vit, 16),
    "Swin": (small_swin, 24),
}


def torchvision_rows(document: str) -> dict[str, tuple[str, dict[str, int]]]:
    """Family -> layer and options, as the document's table for torchvision says."""
    table = (
        (ROOT / document).read_text(encoding="utf8").split("<!-- torchvision -->")[1].split("<!-- /torchvision -->")[0]
    )
    rows = {}
    for line in table.strip().splitlines()[2:]:
        families, layer, options = (cell.strip() for cell in line.strip("|").split("|")[:3])
        found = {name: int(value) for name, value in re.findall(r"(\w+)=(-?\d+)", options)}
        rows |= {family: (layer.strip("`"), found) for family in families.split(", ")}
    return rows


ROWS = torchvision_rows("docs/which-layer.md")


def test_the_two_tables_agree_and_every_row_has_a_model():
    assert torchvision_rows("README.md").items() <= ROWS.items()
    assert ROWS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", ROWS)
def test_the_layer_of_the_table_fires_once_with_its_channels_where_it_says(family):
    build, channels = FAMILIES[family]
    layer, options = ROWS[family]
    x, y = torch.randn(2, 3, 32, 32, generator=momentex.stream(0, 0, family)), torch.tensor([0, 1])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(weights=None)
    found = momentex.check(model, layer, x, y, **options)
    assert found.features[options.get("channel_dim", 1)] == channels
    assert found.strength is not None
    assert found.strength.gain_median < 10


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_options_in_the_tables_are_known_to_momentex(document):
    for _, options in torchvision_rows(document).values():
        assert options.keys() <= {"channel_dim", "skip"}
