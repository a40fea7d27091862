"""Two versions of the library, side by side in one run."""
