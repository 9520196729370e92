"""Run one candidate: environment, launch, process, evidence, diagnosis."""
