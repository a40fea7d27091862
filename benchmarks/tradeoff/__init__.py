"""Test accuracy against accuracy under attack, over each method's own bound."""
