"""Colours, shapes and dashes of plots: series can be told apart, whatever somebody's vision."""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest

from flopwatch.output.plots.theme import (
    COLOURS,
    DARK,
    DARK_INKS,
    INKS,
    Inks,
    choose_colour,
    choose_dash,
    choose_shade,
    choose_shape,
    make_config,
)
from tests.plot_tools import GALLERY, draw

# Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(colour: str) -> list[float]:
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]


def multiply(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def to_lab(rgb: list[float]) -> tuple[float, float, float]:
    white_xyz = ((0.4339, 0.3763, 0.1900), (0.2126, 0.7152, 0.0722), (0.0178, 0.1095, 0.8731))
    x, y, z = (max(0.0, value) ** (1 / 3) for value in multiply(white_xyz, rgb))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("inks", [INKS, DARK_INKS], ids=["light", "dark"])
def test_colours_can_be_told_apart(inks: Inks, vision: str) -> None:
    """A distance of 2 is just visible side by side; lines apart from each other need much more."""
    assert len(inks.series) == COLOURS + 1
    seen = [to_lab(multiply(VISIONS[vision], linear(colour))) for colour in inks.series]
    assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 25


def contrast(one: str, other: str) -> float:
    """As WCAG defines it."""
    weights = (0.2126, 0.7152, 0.0722)
    light, dark = sorted(
        (
            sum(w * c for w, c in zip(weights, linear(colour), strict=True))
            for colour in (one, other)
        ),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("inks", [INKS, DARK_INKS], ids=["light", "dark"])
def test_words_and_marks_stand_out_from_the_paper(inks: Inks) -> None:
    assert contrast(inks.text, inks.paper) > 7
    assert contrast(inks.quiet, inks.paper) > 4.5
    assert all(contrast(colour, inks.paper) > 2.7 for colour in inks.series)


def test_words_in_bars_can_be_read() -> None:
    for number, shade in itertools.product(range(COLOURS + 1), range(5)):
        fill = choose_shade(number, shade)
        assert contrast(fill, INKS.text) > 3
        assert contrast(DARK[fill], DARK_INKS.text) > 2.5


def test_sixteen_series_can_be_told_apart_without_their_colours_too() -> None:
    styles = [(choose_colour(n), tuple(choose_dash(n)), choose_shape(n)) for n in range(16)]
    assert len(set(styles)) == 16
    assert len({style[1:] for style in styles}) == 16


@pytest.mark.parametrize("name", GALLERY)
def test_every_colour_has_a_dark_one(name: str) -> None:
    for plot in draw(name):
        used = set(re.findall(r"#[0-9a-f]{6}\b", json.dumps(plot.layers)))
        assert used
        assert used <= DARK.keys()


def test_configurations_differ_by_their_colours_only() -> None:
    light, dark = json.dumps(make_config()), json.dumps(make_config(DARK_INKS))
    assert light != dark
    for one, other in DARK.items():
        light = light.replace(f'"{one}"', f'"{other}"')
    assert light == dark
