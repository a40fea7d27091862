"""What `spectralclip demo` runs: small networks, digits and an attack. Nothing else imports it."""

from spectralclip.demo.digits import load_digits

__all__ = ["load_digits"]
