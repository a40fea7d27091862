"""What the study measures on trained models: true norms and times."""
