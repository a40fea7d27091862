"""Attacks on classifiers of images, and the accuracy that is left under them.

Models take pixels in [0, 1] and normalize them in a layer of their own, so that distances are
those between images. With `protocol="paper"` the attack moves normalized inputs instead, within
the box [0, 1], as the published figures were made: the box then cuts into the images themselves.
"""

from experiments.attacks._inputs import Protocol
from experiments.attacks.accuracy import robust_accuracy
from experiments.attacks.carlini_wagner import carlini_wagner_l2
from experiments.attacks.pgd import pgd_linf

__all__ = ["Protocol", "carlini_wagner_l2", "pgd_linf", "robust_accuracy"]
