"""`find_layers`: the affine layers of a model, with the shapes of their inputs."""

from __future__ import annotations

from torch import nn

from spectralclip._models.example_inputs import ExampleInputs
from spectralclip._models.survey import Compose, FoundLayer, Pairs, Survey, check_compose


def find_layers(
    model: nn.Module,
    example_inputs: ExampleInputs,
    compose: Compose = "conv_bn",
    *,
    pairs: Pairs = (),
) -> dict[str, FoundLayer]:
    """The affine layers of a model and the shapes of their inputs, from one forward pass.

    A layer is a module that has parameters of its own, is called in the forward pass, and is
    affine: dense layers, convolutions, transposed ones, batch norms with running statistics and
    embeddings by their type, any other by evaluating it at a few random points. So is each matrix
    inside a recurrent layer or `nn.MultiheadAttention`, as "rnn.weight_hh_l0[forget]" or
    "attn.in_proj_weight[k]". The model runs as in evaluation and is left as it was.
    `skipped_layers` says what is not among them, and why.

    Two layers follow each other directly where, at each use, the second reads the very tensor
    that the first made, and nothing else reads that one: no operation, no other module, and not
    the caller of the model. Every operation of the pass is seen, so that this holds for any model
    that runs, whether or not it can be traced; it says nothing of paths not taken.

    Args:
        model: Any module. Names are those of the bare model inside a compiled or parallel one.
        example_inputs: What the model is called with, with the batch dimension: a tensor, a tuple
            of positional arguments, or a dictionary of keyword arguments.
        compose: Report as one layer a dense layer or convolution and the batch norm that directly
            follows it ("conv_bn"); all layers that directly follow each other ("chains"), along
            with what is affine between them and has no parameters, as average pooling; or none
            ("none").
        pairs: Names of modules of which the second follows the first, to be reported as one
            even if something else reads what the first makes; pairs that overlap make a chain.

    Returns:
        The layers by name, in the order of their first use.

    Raises:
        ValueError: A lazy module has no parameters yet; or the modules of a pair do not follow
            each other.

    Example:
        >>> import torch
        >>> from spectralclip import find_layers
        >>> block = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        >>> model = torch.nn.Sequential(
        ...     block, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
        ... )
        >>> for name, layer in find_layers(model, torch.zeros(1, 3, 8, 8)).items():
        ...     print(name, layer.in_shapes)
        0.0+0.1 ((3, 8, 8),)
        3 ((288,),)
    """
    check_compose(compose)
    return Survey.of(model, example_inputs).layers(compose, pairs)


def skipped_layers(model: nn.Module, example_inputs: ExampleInputs) -> dict[str, str]:
    """The modules with parameters of their own that `find_layers` leaves out: why, by their names.

    Args:
        model: Any module.
        example_inputs: What the model is called with, as for `find_layers`.

    Example:
        >>> import torch
        >>> from spectralclip import skipped_layers
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
        >>> print(skipped_layers(model, torch.zeros(1, 4))["1"])
        LayerNorm((4,)...) is not affine: ...
    """
    return Survey.of(model, example_inputs).skipped()
