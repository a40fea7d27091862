"""What `spectralclip demo` runs: small networks, digits and an attack. Nothing else imports it."""

from spectralclip.demo.digits import load_digits
from spectralclip.demo.tour import run

__all__ = ["load_digits", "run"]
