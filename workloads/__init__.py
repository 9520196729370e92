"""What torchrun starts. Standard library and torch only."""
