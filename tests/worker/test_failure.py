"""Exceptions of all kinds, as text that a record can hold."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import DistBackendError

from flopwatch.worker.failure import (
    LONGEST_TEXT,
    classify,
    describe_error,
    is_device_error,
    is_loss_of_peer,
)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


class Number(Exception):
    __str__ = lambda self: 7  # type: ignore[assignment]  # noqa: E731


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unspeakable(), "Unspeakable: its text cannot be read (SystemExit)"),
        (Number(), "Number: its text cannot be read (TypeError)"),
        (ValueError("half: \ud800"), r"ValueError: half: \ud800"),
        (
            ValueError("x" * 10**6),
            f"ValueError: {'x' * LONGEST_TEXT}... (the first {LONGEST_TEXT} of 1000000 characters)",
        ),
    ],
)
def test_odd_exceptions_have_a_message(error: Exception, message: str) -> None:
    assert describe_error(error, None).message == message
    assert describe_error(error, None).status == "crash"
    assert not is_loss_of_peer(error)


NCCL = "NCCL error in: ProcessGroupNCCL.cpp:94, {}: Call to CUDA function failed. Last error:\n{}"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        torch.AcceleratorError("HIP error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("miopenStatusAllocFailed"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 18 GB)"),
        RuntimeError("level_zero: error 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        DistBackendError(NCCL.format("ncclUnhandledCudaError", "Cuda failure 2 'out of memory'")),
        MemoryError(),
    ],
    ids=lambda error: " ".join(str(error).split()[:4]),
)
def test_memory_that_ran_out_is_known_by_many_names(error: Exception) -> None:
    assert classify(error) == "oom"
    assert not is_loss_of_peer(error)


@pytest.mark.parametrize(
    ("error", "is_of_device"),
    [
        (torch.AcceleratorError("an illegal memory access was encountered"), True),
        (torch.AcceleratorError("whatever another accelerator says"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("HIP error: unspecified launch failure"), True),
        (RuntimeError("CUDA error: misaligned address"), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), True),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), True),
        (DistBackendError(NCCL.format("ncclUnhandledCudaError", "Cuda failure 700")), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (RuntimeError("out of resource: shared memory, Required: 262144"), False),
        (ValueError("the CUDA error of my ways"), False),
    ],
    ids=lambda value: " ".join(str(value).split()[:4]),
)
def test_errors_of_a_device_are_told_from_others(error: Exception, is_of_device: bool) -> None:
    assert is_device_error(error) == is_of_device
    assert classify(error) == "crash"
    assert not is_loss_of_peer(error)


def test_an_error_of_a_device_may_be_the_cause_of_another() -> None:
    def fail() -> None:
        try:
            raise torch.AcceleratorError("an illegal memory access was encountered")
        except RuntimeError as error:
            raise ValueError("the kernel failed") from error

    with pytest.raises(ValueError, match="the kernel failed") as caught:
        fail()
    assert is_device_error(caught.value)


def test_the_end_of_another_rank_is_not_an_error_of_the_device() -> None:
    assert is_loss_of_peer(DistBackendError("NCCL error: ncclRemoteError: a remote process exited"))
