"""A study as something to read: one page for a person who decides, and the same numbers as text."""
