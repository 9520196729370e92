"""What is this machine? Facts, links, NCCL library, inherited settings."""
