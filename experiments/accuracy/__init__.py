"""What the three tables share: their runs, their claims, and how they are written."""
