"""Models by name and by dimensions."""

from __future__ import annotations

import pytest

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import SHAPES, find_shape


def test_a_name_with_changes_is_that_model_with_changes() -> None:
    shape = find_shape("small:layers=3:tied=true:activation=gelu")
    assert (shape.layers, shape.tied, shape.activation) == (3, True, "gelu")
    assert (shape.hidden_size, shape.is_tied, shape.is_gated) == (768, True, False)
    assert SHAPES["small"].layers == 12


def test_an_architecture_takes_usual_proportions() -> None:
    shape = find_shape("qwen2:hidden_size=512:layers=2")
    assert (shape.architecture, shape.heads, shape.feed_forward_size) == ("qwen2", 8, 2048)


def test_the_sizes_of_the_course_are_as_its_handouts_have_them() -> None:
    def list_sizes(name: str) -> tuple[int, int, int, int, int]:
        s = SHAPES[name]
        return s.hidden_size, s.feed_forward_size, s.layers, s.heads, s.vocabulary

    assert list_sizes("small") == (768, 3072, 12, 12, 10_000)
    assert list_sizes("xl") == (1600, 6400, 48, 25, 10_000)
    assert list_sizes("2.7B") == list_sizes("xl-2026") == (2560, 10240, 32, 32, 10_000)
    assert list_sizes("10B") == (4608, 12288, 50, 36, 10_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("huge", "there is no model 'huge'; `flopwatch models` lists all names"),
        ("llama", "there is no model 'llama' alone; llama-7b, "),
        ("small:depth=3", "'depth=3' is not name=value with a name of hidden_size, "),
        ("small:layers", "'layers' is not name=value"),
        ("small:layers=0", "'0' cannot be its layers"),
        ("small:layers=many", "'many' cannot be its layers"),
        ("small:tied=perhaps", "'perhaps' cannot be its tied"),
        ("small:activation=relu", "'relu' cannot be its activation"),
        ("small:heads=7", "7 heads cannot share a hidden size of 768"),
        ("small:heads=256", "rotary positions need an even width"),
        ("small:key_value_heads=2", "decoder has no key_value_heads"),
        ("opt-125m:activation=gelu", "only decoder and gpt have a choice of activation"),
        ("small:embedding_size=64", "only opt has an embedding_size"),
        ("small:norm_first=false", "only opt can have its norms last"),
        ("small:architecture=llama", "is not name=value"),
    ],
)
def test_what_makes_no_sense_gets_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_shape(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_longer_sequence_stretches_the_positions() -> None:
    shape = find_shape("gpt-125m")
    assert shape.stretch(4096).positions == 4096
    assert shape.stretch(16) is shape
