"""Specs, their table, and putting layers into models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flopwatch import layers
from flopwatch.errors import LayerError
from flopwatch.layers import Dyad, registry
from flopwatch.layers.swapping import find_linear, install


@pytest.fixture(autouse=True)
def keep_table() -> Iterator[None]:
    kept = dict(registry.KINDS)
    yield
    registry.KINDS.clear()
    registry.KINDS.update(kept)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.fc2(self.fc1(self.norm(x)).relu())
        return out


def make_model() -> nn.Module:
    model = nn.Sequential(nn.Embedding(10, 8), Block(), Block(), nn.Linear(8, 10, bias=False))
    model[3].weight = model[0].weight
    return model


def test_specs_make_layers() -> None:
    assert isinstance(layers.make("dense", 8, 16), nn.Linear)
    layer = layers.make("dyad:ot:2:cat", 8, 16, bias=False, dtype=torch.float64)
    assert isinstance(layer, Dyad)
    assert (layer.variant, layer.blocks, layer.form, layer.bias) == ("ot", 2, "cat", None)
    assert layer.weight.dtype == torch.float64
    assert str(registry.parse("dyad:ot:2:cat")) == "dyad:ot:2:cat"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("mine:4", "'mine:4' is not of the form mine$"),
        ("sparse:4", "no layer is called 'sparse'; there are dense, dyad"),
        ("", "no layer is called ''"),
        ("dense:4", "'dense:4' is not of the form dense$"),
        ("dyad:it", r"'dyad:it' is not of the form dyad:VARIANT:BLOCKS\[:FORM\]"),
        ("dyad:it:4:cat:more", "is not of the form"),
        ("dyad:ti:4", "'ti' is no variant of DYAD; take one of it, ot, dt, auto"),
        ("dyad:it:four", "'four' is no number of blocks"),
        ("dyad:it:0", "0 is no number of blocks"),
        ("dyad:it:4:best", "'best' is no form of DYAD"),
    ],
)
def test_bad_specs_get_one_sentence(spec: str, sentence: str) -> None:
    layers.register("mine", nn.Linear)
    with pytest.raises(LayerError, match=sentence):
        registry.parse(spec)


def test_the_table_knows_all_variants_and_forms() -> None:
    from flopwatch.layers.dyad_layer import FORMS
    from flopwatch.layers.dyad_matmul import VARIANTS

    assert {"variant": (*VARIANTS, "auto"), "form": tuple(FORMS)} == registry.DYAD_WORDS


def test_flops_by_spec() -> None:
    assert registry.count_flops("dense", 10, 8, 16) == 2 * 10 * 8 * 16
    assert registry.count_flops("dyad:it:4", 10, 8, 16) == 2 * 10 * 8 * 16 / 2
    layers.register("mine", nn.Linear)
    assert registry.count_flops("mine", 10, 8, 16) is None


def test_a_layer_of_ones_own_in_a_line() -> None:
    layers.register("low-rank", lambda i, o, rank, **rest: nn.Sequential(
        nn.Linear(i, rank, bias=False), nn.Linear(rank, o, bias=rest["bias"])))  # fmt: skip
    assert layers.make("low-rank:3", 8, 16)[0].out_features == 3  # type: ignore[index,union-attr]
    model = make_model()
    layers.swap(model, "low-rank:3", match="*.fc1")
    assert model(torch.tensor([1, 2])).shape == (2, 10)
    with pytest.raises(LayerError, match="'low-rank' is not of the form low-rank:RANK"):
        registry.parse("low-rank")
    with pytest.raises(LayerError, match="'a:b' is no name for a layer"):
        layers.register("a:b", nn.Linear)


def test_swap_replaces_what_matches_and_says_so() -> None:
    model = make_model().eval()
    before = sum(p.numel() for p in model.parameters())
    done = layers.swap(model, "dyad:auto:4", match="*.fc[12]")
    assert done.layers == ("1.fc1", "1.fc2", "2.fc1", "2.fc2")
    assert done.parameters_before == before
    assert done.parameters_after == before - 4 * 64
    assert str(done) == (
        "4 layers are now dyad:auto:4 (1.fc1, 1.fc2, 2.fc1, 2.fc2); the model has 400 parameters "
        "instead of 656"
    )
    first, second = model[1].fc1, model[1].fc2
    assert (first.variant, second.variant) == ("it", "ot")
    assert first.bias is not None
    assert second.bias is None
    assert not first.training
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 10)


def test_swap_keeps_dtype_and_device() -> None:
    model = make_model().to(torch.bfloat16)
    layers.swap(model, "dyad:it:4", match="*.fc1")
    assert model[1].fc1.weight.dtype == torch.bfloat16
    with torch.device("meta"):
        model = make_model()
    layers.swap(model, "dyad:it:4", match="*.fc1")
    assert model[1].fc1.weight.is_meta


def test_swap_back_and_forth() -> None:
    model = make_model()
    layers.swap(model, "dyad:it:4", match=["*.fc1", "*.fc2"])
    done = layers.swap(model, "dense", match="*.fc*")
    assert len(done.layers) == 4
    assert type(model[1].fc1) is nn.Linear


def test_a_pattern_that_matches_nothing_lists_candidates() -> None:
    with pytest.raises(LayerError, match=r"matches '\*.mlp'; it has \*.fc1, \*.fc2, \*$"):
        layers.swap(make_model(), "dyad:it:4", match="*.mlp")
    with pytest.raises(LayerError, match="it has none"):
        layers.swap(nn.LayerNorm(8), "dense")


def test_tied_weights_are_not_parted() -> None:
    with pytest.raises(LayerError, match="'3' shares its weight with '0'.*leaves it out"):
        layers.swap(make_model(), "dyad:it:2", match="*")


def test_all_or_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 9))
    with pytest.raises(LayerError, match="'1' cannot become dyad:it:4: 4 blocks do not divide 8"):
        layers.swap(model, "dyad:it:4")
    assert type(model[0]) is nn.Linear


def test_a_model_that_is_a_linear_layer_itself() -> None:
    with pytest.raises(LayerError, match="itself a linear layer; make another one"):
        layers.swap(nn.Linear(8, 8), "dyad:it:4")


def test_a_layer_at_two_places_is_not_parted() -> None:
    layer = nn.Linear(8, 8)
    with pytest.raises(LayerError, match="'0' shares its weight with '1'"):
        layers.swap(nn.Sequential(layer, layer), "dyad:it:4")


def test_makers_must_pass_on_dtype_and_device() -> None:
    layers.register("careless", lambda i, o, **rest: nn.Linear(i, o, bias=rest["bias"]))
    model = make_model().to(torch.bfloat16)
    with pytest.raises(LayerError, match="a parameter in torch.float32 on cpu, not in torch.bf"):
        layers.swap(model, "careless", match="*.fc1")


def test_subclasses_of_linear_are_left_alone() -> None:
    """Attention multiplies by out_proj.weight itself."""
    model = nn.TransformerEncoderLayer(8, 2, 16)
    assert list(find_linear(model)) == ["linear1", "linear2"]


def test_installed_layers_can_be_exchanged() -> None:
    model = make_model()
    dense = find_linear(model, "*.fc1")
    layers.swap(model, "dyad:it:4", match="*.fc1")
    install(model, dense)
    assert model[1].fc1 is dense["1.fc1"]
