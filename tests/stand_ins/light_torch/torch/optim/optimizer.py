"""An optimizer with torch's hooks for its steps."""

before, after = [], []  # hooks for the steps of all optimizers
register_optimizer_step_pre_hook = before.append
register_optimizer_step_post_hook = after.append


class Optimizer:
    def __init__(self, parameters):
        self.parameters = [*parameters]
        self._patch_step_function()
        self.state = {}

    def _patch_step_function(self):
        """Do nothing; torch calls this at the end of an optimizer's construction."""

    def step(self):
        for hook in before:
            hook(self, (), {})
        self.update()
        for hook in after:
            hook(self, (), {})


class SGD(Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters)
        self.lr = lr

    def update(self):
        for each in self.parameters:
            if each.grad is not None:
                pairs = zip(each.values, each.grad.values, strict=True)
                each.values = [value - self.lr * slope for value, slope in pairs]
