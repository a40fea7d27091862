"""Methods that keep the spectrum of layers in check: ours, and the published ones.

A new method is a file of its own and an import line here: `available` and `get` know it from then
on, by the name of its file.
"""

from spectralclip._training import SpectralClip as SpectralClip
from spectralclip.methods._domain import OutsideDomain as OutsideDomain
from spectralclip.methods._registry import available as available
from spectralclip.methods._registry import estimators as estimators
from spectralclip.methods._registry import get as get
from spectralclip.methods.baselines._power import virmaux_svds as virmaux_svds
from spectralclip.methods.baselines.aol import AOL as AOL
from spectralclip.methods.baselines.cayley import Cayley as Cayley
from spectralclip.methods.baselines.cisse import Cisse as Cisse
from spectralclip.methods.baselines.cisse import ConvexSum as ConvexSum
from spectralclip.methods.baselines.delattre import Delattre as Delattre
from spectralclip.methods.baselines.eco import ECO as ECO
from spectralclip.methods.baselines.farnia import Farnia as Farnia
from spectralclip.methods.baselines.gouk import Gouk as Gouk
from spectralclip.methods.baselines.lot import LOT as LOT
from spectralclip.methods.baselines.miyato import Miyato as Miyato
from spectralclip.methods.baselines.sedghi import Sedghi as Sedghi
from spectralclip.methods.baselines.senderovich import Senderovich as Senderovich
from spectralclip.methods.baselines.soc import SOC as SOC
from spectralclip.methods.baselines.virmaux import Virmaux as Virmaux
from spectralclip.methods.clip_batch_norm import ClipBatchNorm as ClipBatchNorm
from spectralclip.methods.fast_clip import FastClip as FastClip
from spectralclip.methods.paper_clip import PUBLISHED as PUBLISHED
from spectralclip.methods.paper_clip import (
    PUBLISHED_WITHOUT_BATCH_NORM as PUBLISHED_WITHOUT_BATCH_NORM,
)
from spectralclip.methods.paper_clip import PaperClipResult as PaperClipResult
from spectralclip.methods.paper_clip import PaperClipSettings as PaperClipSettings
from spectralclip.methods.paper_clip import paper_clip_ as paper_clip_
from spectralclip.methods.parametrize import Parametrize as Parametrize
from spectralclip.methods.parametrize import true_spectral_norm as true_spectral_norm
