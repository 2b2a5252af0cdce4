"""What a worker has written where the runner still finds it after its death."""

from __future__ import annotations

import os
from array import array

from flopwatch.worker.channel import NO_VARIANT, make_board


def test_the_runner_reads_what_the_worker_has_written() -> None:
    file, board = make_board()
    with file:
        assert board.read() == (None, "starting")
        board.write(300, "sampling")
        assert board.read() == (300, "sampling")
        board.point_at(70_000)
        assert board.read() == (70_000, "sampling")
        board.write(NO_VARIANT, "finish")
        assert board.read() == (None, "finish")


def test_garbage_on_the_board_is_no_error() -> None:
    file, board = make_board()
    with file:
        os.pwrite(file.fileno(), array("i", [-5, 1000]).tobytes(), 0)
        assert board.read() == (None, "an unknown stage")
