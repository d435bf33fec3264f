"""The parameters of an optimizer."""

from .tensors import Tensor


class Parameter(Tensor):
    def __init__(self, data):
        super().__init__(data.values)
        self.grad = None
