"""The probe with faults planted into it; stands in the place of ``nccltune.workloads``."""
