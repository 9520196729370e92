"""What may be tried here? Catalogue, legality, narrowing."""
