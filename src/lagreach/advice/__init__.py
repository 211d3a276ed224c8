"""What to do about it: plans without a model, lengths, gates, and what another setting would change."""
