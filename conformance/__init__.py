"""The conformance suite: 200 layers with certified norms, and what made them.

`layers.safetensors` holds the weights and `truth.json` what is known of them;
`docs/conformance.md` documents both. `python -m conformance.make` makes them anew. Nothing here
asks the library for a norm: matrices are written down from the definition of a convolution.
"""
