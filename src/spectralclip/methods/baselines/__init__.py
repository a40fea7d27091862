"""The published methods, one file each, to be compared with."""
