"""NCCL knowledge as data: the catalogue of knobs and one file per kind of cluster."""
