"""The module that a training step runs: the net itself, or a faster working copy that shares the net's tensors."""

from __future__ import annotations

import copy
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paperbench.errors import RunError, listing
from paperbench.training.batch_norm import BatchNormAverages


class DirectModel:
    """The net itself, with the averages of its BN layers."""

    def __init__(self, net: nn.Module) -> None:
        self.module = net
        self.averages = BatchNormAverages(net)
        self._parameters = list(net.parameters())

    def refresh(self) -> None:
        """Prepare for a step after an update of the parameters or a test."""
        if not self.module.training:
            self.module.train()

    def clear_gradients(self) -> None:
        """Set all gradients to None."""
        for parameter in self._parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the last backward pass, in the order and dtype of the net's parameters."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if len(gradients) != len(self._parameters):
            unused = [name for name, one in self.module.named_parameters() if one.grad is None]
            raise RunError(f"Parameters of the net are frozen or not used: {listing(unused)}. Make them buffers.")
        return gradients


class WorkingCopy(DirectModel):
    """A copy of a net, always in training mode, that shares the net's parameters, buffers and BN statistics.

    Args:
        bf16_weights: Also keep the weights of convolutions and classifier in bfloat16. Autocast gives the same numbers,
            but launches a kernel per weight, forward and backward.
    """

    def __init__(self, net: nn.Module, *, bf16_weights: bool = False) -> None:
        # deepcopy does not copy the tensors in its memo.
        shared = chain(net.parameters(), net.buffers(), BatchNormAverages(net).statistics)
        memo = {id(tensor): tensor for tensor in shared}
        indices = {id(parameter): index for index, parameter in enumerate(net.parameters())}
        # By index of the parameter: the net's tensor, and its bfloat16 copy.
        self._rounded: dict[int, tuple[Tensor, Tensor]] = {}
        if bf16_weights:
            for layer in net.modules():
                if type(layer) in (nn.Conv2d, nn.Linear):  # others may compute with their weights
                    for own in layer.parameters():
                        memo[id(own)] = rounded = nn.Parameter(own.detach().bfloat16())
                        self._rounded[indices[id(own)]] = own, rounded
        super().__init__(copy.deepcopy(net, memo).train())
        for layer in self.module.modules():
            if isinstance(layer, _BatchNorm):
                layer.num_batches_tracked = None  # a counter on the host would miss replays; the trainer counts
        self._parameters = list(self.module.parameters())
        self.averages = BatchNormAverages(self.module)

    def twin(self) -> WorkingCopy:
        """Return a copy with the same weights, which this one refreshes, and gradients and BN statistics of its own."""
        twin = copy.copy(self)
        memo = {id(buffer): buffer for buffer in self.module.buffers()}
        memo |= {id(parameter): nn.Parameter(parameter.detach()) for parameter in self._parameters}
        memo |= {id(part): torch.zeros_like(part) for part in self.averages.statistics}
        twin.module = copy.deepcopy(self.module, memo)
        twin._parameters = list(twin.module.parameters())
        twin.averages = BatchNormAverages(twin.module)
        return twin

    @torch.no_grad()
    def refresh(self) -> None:
        if self._rounded:
            exact, rounded = zip(*self._rounded.values(), strict=True)
            torch._foreach_copy_(rounded, exact)

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        gradients = super().gradients()
        if self._rounded:
            widened = [torch.empty_like(own) for own, _ in self._rounded.values()]
            torch._foreach_copy_(widened, [gradients[index] for index in self._rounded])
            for index, gradient in zip(self._rounded, widened, strict=True):
                gradients[index] = gradient
        return gradients
