"""The commands, one thin function each, by what they are about. `cli` gathers them."""
