"""The clipping step: groups of equally shaped layers, moved on their device without a read."""
