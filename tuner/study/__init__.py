"""Run many candidates and keep the truth: search, ledger, tracking, statistics."""
