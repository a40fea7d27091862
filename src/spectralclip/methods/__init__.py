"""Methods that keep the spectrum of layers in check: ours, and the published ones.

A new method is a file of its own and an import line here: `available` and `get` know it from then
on, by the name of its file.
"""

from spectralclip._training import SpectralClip as SpectralClip
from spectralclip.methods._convex_sum import ConvexSum as ConvexSum
from spectralclip.methods._deflation import virmaux_svds as virmaux_svds
from spectralclip.methods._domain import OutsideDomain as OutsideDomain
from spectralclip.methods._registry import available as available
from spectralclip.methods._registry import get as get
from spectralclip.methods.aol import AOL as AOL
from spectralclip.methods.cayley import Cayley as Cayley
from spectralclip.methods.cisse import Cisse as Cisse
from spectralclip.methods.clip_batch_norm import ClipBatchNorm as ClipBatchNorm
from spectralclip.methods.delattre import Delattre as Delattre
from spectralclip.methods.eco import ECO as ECO
from spectralclip.methods.farnia import Farnia as Farnia
from spectralclip.methods.fast_clip import FastClip as FastClip
from spectralclip.methods.gouk import Gouk as Gouk
from spectralclip.methods.lot import LOT as LOT
from spectralclip.methods.miyato import Miyato as Miyato
from spectralclip.methods.paper_clip import PUBLISHED as PUBLISHED
from spectralclip.methods.paper_clip import (
    PUBLISHED_WITHOUT_BATCH_NORM as PUBLISHED_WITHOUT_BATCH_NORM,
)
from spectralclip.methods.paper_clip import PaperClipResult as PaperClipResult
from spectralclip.methods.paper_clip import PaperClipSettings as PaperClipSettings
from spectralclip.methods.paper_clip import paper_clip_ as paper_clip_
from spectralclip.methods.parametrize import Parametrize as Parametrize
from spectralclip.methods.parametrize import true_spectral_norm as true_spectral_norm
from spectralclip.methods.sedghi import Sedghi as Sedghi
from spectralclip.methods.senderovich import Senderovich as Senderovich
from spectralclip.methods.soc import SOC as SOC
from spectralclip.methods.virmaux import Virmaux as Virmaux
