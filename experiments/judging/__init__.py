"""What the study makes of its runs: statistics, and verdicts on claims."""
