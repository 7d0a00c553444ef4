"""The multilayer perceptron of the profile: forward pass, softmax cross entropy and its gradients.

See market.md 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.engines import exact
from tasks.engines.arrays import Array, Arrays

__all__ = ["Gradients", "Layer", "gradients", "logits"]


@dataclass(frozen=True)
class Layer:
    """Weights (inputs x outputs) and bias (1 x outputs)."""

    weight: Array
    bias: Array


@dataclass(frozen=True)
class Gradients:
    """Mean loss of a batch (1 x 1) and the gradients of each layer."""

    loss: Array
    layers: tuple[Layer, ...]


def logits(arrays: Arrays, layers: tuple[Layer, ...], features: Array, activation: str) -> Array:
    """Return one row of class scores for each row of ``features``."""
    return _forward(arrays, layers, features, activation)[1][-1]


def _forward(
    arrays: Arrays, layers: tuple[Layer, ...], features: Array, activation: str
) -> tuple[list[Array], list[Array]]:
    """Return the input of each layer and the sums it puts out before its activation."""
    inputs, sums = [features], []
    for layer in layers:
        sums.append(exact.contract(arrays, inputs[-1], layer.weight) + layer.bias)
        if len(sums) < len(layers):
            inputs.append(_activate(arrays, sums[-1], activation))
    return inputs, sums


def _activate(arrays: Arrays, values: Array, activation: str) -> Array:
    if activation == "relu":
        return arrays.where(values > 0.0, values, 0.0)  # not a maximum: which zero that returns is open
    return values * exact.sigmoid(arrays, values) + 0.0


def _through_activation(arrays: Arrays, gradient: Array, values: Array, activation: str) -> Array:
    if activation == "relu":
        return arrays.where(values > 0.0, gradient, 0.0)
    gate = exact.sigmoid(arrays, values)
    slope = gate * (values * (1.0 - gate) + 1.0)
    return gradient * slope + 0.0


def gradients(
    arrays: Arrays, layers: tuple[Layer, ...], features: Array, one_hot: Array, activation: str
) -> Gradients:
    """Return the mean softmax cross entropy of a batch and its gradients. ``one_hot`` marks the labels."""
    share = 1.0 / features.shape[0]  # a factor: see AdamW
    inputs, sums = _forward(arrays, layers, features, activation)
    shifted = sums[-1] - arrays.amax(sums[-1], 1)
    powers = exact.exp(arrays, shifted)
    norms = exact.total(arrays, powers, 1)
    losses = exact.log(arrays, norms) - exact.total(arrays, shifted * one_hot, 1)
    loss = exact.total(arrays, losses, 0) * share
    gradient = (powers / norms - one_hot) * share
    found: list[Layer] = []
    for index in range(len(layers) - 1, -1, -1):
        weight = exact.contract(arrays, inputs[index].T, gradient)
        found.append(Layer(weight, exact.total(arrays, gradient, 0)))
        if index:
            back = exact.contract(arrays, gradient, layers[index].weight.T)
            gradient = _through_activation(arrays, back, sums[index - 1], activation)
    return Gradients(loss, tuple(reversed(found)))
