"""What a step computes with: the net itself, or a copy that shares its tensors but for what is faster otherwise."""

from __future__ import annotations

import copy
from itertools import chain

import torch
from torch import Tensor, nn

from paperbench.training.batch_norm import GroupedBatchNorm2d, MovingAverages


class DirectModel:
    """The net as it is.

    Attributes:
        module: The net.
    """

    def __init__(self, net: nn.Module) -> None:
        self.module = net
        self._parameters = list(net.parameters())

    def refresh(self) -> None:
        """Make ready for a step, after an update or a test."""
        if not self.module.training:
            self.module.train()

    def take_in_statistics(self) -> None:
        """Update what BN keeps of the last forward pass, unless it has done so itself."""

    def forget_gradients(self) -> None:
        """So that the next backward pass sets them rather than adds to them."""
        for parameter in self._parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Of the last backward pass, in the order of the net's parameters and in their dtype."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if len(gradients) != len(self._parameters):
            raise RuntimeError("a parameter has no gradient: the net does not use it")
        return gradients


class WorkingCopy(DirectModel):
    """A copy of a net, always in training mode, whose parameters and buffers are the net's own.

    Args:
        net: The net. What is trained stays in it.
        bf16_weights: Keep weights of convolutions and classifier in bfloat16 beside the net's own. Autocasting makes
            the same numbers, but with a kernel for every weight, forward and backward.
        batch_norm_group: Give every BN groups of so many images, rather than the whole batch.
        groups: How many of them a training batch has; see `GroupedBatchNorm2d`.

    Attributes:
        module: The copy.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        bf16_weights: bool = False,
        batch_norm_group: int | None = None,
        groups: int | None = None,
    ) -> None:
        # Tensors that deepcopy finds in its memory are not copied.
        known = {id(tensor): tensor for tensor in chain(net.parameters(), net.buffers())}
        places = {id(parameter): index for index, parameter in enumerate(net.parameters())}
        self._rounded: dict[int, tuple[Tensor, Tensor]] = {}  # place among the parameters: the net's own, in bfloat16
        self._by_group: dict[int, tuple[Tensor, Tensor]] = {}  # likewise: the net's own, a copy for each group
        if bf16_weights:
            for layer in net.modules():
                if isinstance(layer, (nn.Conv2d, nn.Linear)):
                    for own in layer.parameters():
                        known[id(own)] = rounded = nn.Parameter(own.detach().bfloat16())
                        self._rounded[places[id(own)]] = own, rounded
        super().__init__(copy.deepcopy(net, known).train())
        for parent in list(self.module.modules()):
            for name, child in parent.named_children():
                if isinstance(child, nn.BatchNorm2d):
                    child.num_batches_tracked = None  # a host's counter would not count on replays; the trainer does
                    if batch_norm_group is not None:
                        grouped = GroupedBatchNorm2d(child, batch_norm_group, groups)
                        setattr(parent, name, grouped)
                        for own, copies in ((child.weight, grouped.weight), (child.bias, grouped.bias)):
                            if copies is not own:
                                self._by_group[places[id(own)]] = own, copies
        self._parameters = list(self.module.parameters())
        self._averages = MovingAverages(m for m in self.module.modules() if isinstance(m, GroupedBatchNorm2d))

    @torch.no_grad()
    def refresh(self) -> None:
        if self._rounded:
            exact, rounded = zip(*self._rounded.values(), strict=True)
            torch._foreach_copy_(rounded, exact)
        if self._by_group:
            pairs = [(row, own) for own, copies in self._by_group.values() for row in copies.unbind()]
            rows, owns = zip(*pairs, strict=True)
            torch._foreach_copy_(rows, owns)

    def take_in_statistics(self) -> None:
        self._averages.update()

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        gradients = super().gradients()
        if self._rounded:
            widened = [torch.empty_like(own) for own, _ in self._rounded.values()]
            torch._foreach_copy_(widened, [gradients[place] for place in self._rounded])
            for place, gradient in zip(self._rounded, widened, strict=True):
                gradients[place] = gradient
        if self._by_group:
            first, *others = zip(*(gradients[place].unbind() for place in self._by_group), strict=True)
            sums = torch._foreach_add(first, others[0])
            for other in others[1:]:
                torch._foreach_add_(sums, other)
            for place, total in zip(self._by_group, sums, strict=True):
                gradients[place] = total
        return gradients
