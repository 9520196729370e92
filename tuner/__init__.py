"""nccltune: an autotuner for NCCL settings that ends in a verdict."""

__version__ = "0.1.0"
