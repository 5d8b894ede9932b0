"""Faults as data: plan, targets, revert steps, journal records. Pure; ``control`` runs them."""
