"""How constrained layers are followed and moved after each step."""
