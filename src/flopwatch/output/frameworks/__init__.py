"""A training job as the configuration of a framework: what `flopwatch plan --emit` prints.

A framework is a module with `find_obstacle`, which says why it cannot run a job as it is, and
`write`, which makes its configuration."""

from flopwatch.output.frameworks.framework_configs import (
    FRAMEWORKS,
    Configuration,
    emit,
    find_emitted,
)

__all__ = ["FRAMEWORKS", "Configuration", "emit", "find_emitted"]
