"""Decide, write down, guard."""
