"""A study whose runs take no time: they add up numbers, and get into trouble where told to."""
