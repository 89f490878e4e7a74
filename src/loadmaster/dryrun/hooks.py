"""Where the program is: modules by path, phases by what is called; and which tensors are parameters, gradients, states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as modules
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from loadmaster.dryrun.tensors import Patches
from loadmaster.dryrun.tracker import Tracker, is_wrapped
from loadmaster.units import format_bytes


class Watch:
    """Hooks on every module, optimizer and backward of the process, for the time of a session.

    ``on_step`` is called after each optimizer step with its number, from 1 on. ``phases`` False: the caller names the phases.
    """

    def __init__(self, tracker: Tracker, on_step: Callable[[int], None] | None = None) -> None:
        self.tracker, self.on_step = tracker, on_step
        self.names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._roots: WeakSet[Any] = WeakSet()
        """Held weakly: some modules live no longer than a call, with the tensors in them (PEFT's parametrizations)."""
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self.owners: dict[int, str] = {}
        """By id of a parameter, the path of the module that has it."""
        self._handles: list[Any] = []
        self._trained = False
        self.steps = 0
        self.pinned_phase: str | None = None
        """A phase that the caller has named: forward passes are that."""
        self.notes: list[str] = []
        """What else should be known of the run."""
        self.after_backward = "forward"
        """What a program is in when backward has returned: its next pass, or its optimizer step."""

    def install(self, patches: Patches) -> None:
        """Begin to watch."""
        self._handles = [
            modules.register_module_forward_pre_hook(self._before_module),
            modules.register_module_forward_hook(self._after_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        patches.set(torch.autograd, "backward", self._backward(torch.autograd.backward))

    def remove(self) -> None:
        """End it. Optimizers keep no states without data: the program may have made them before, and go on with them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for optimizer in self._optimizers:
            for param, state in list(optimizer.state.items()):
                if isinstance(state, dict) and any(isinstance(each, FakeTensor) for each in _flat(state)):
                    del optimizer.state[param]

    def name(self, module: Any, path: str = "") -> None:
        """Name a module and all in it by path, and say that its parameters and buffers are such."""
        for name, each in module.named_modules(prefix=path):
            self.names.setdefault(each, name or type(module).__name__)
            for param in each._parameters.values():
                if param is not None:
                    self.owners.setdefault(id(param), name)
        self._roots.add(module)
        self.tag(module)

    def tag(self, module: Any) -> None:
        """Parameters, buffers and gradients of a module are such."""
        tracker = self.tracker
        for param in module.parameters():
            owner = self.owners.get(id(param))
            tracker.tag(param, "parameters", owner)
            if is_wrapped(param):
                continue
            if param.grad is not None:
                tracker.tag(param.grad, "gradients", owner)
            if param.requires_grad and param.is_leaf and not self._hooked(param):
                self._handles.append(param.register_post_accumulate_grad_hook(self._accumulated))
        for buffer in module.buffers():
            tracker.tag(buffer, "buffers")

    def _hooked(self, param: Any) -> bool:
        hooks = param._post_accumulate_grad_hooks
        return hooks is not None and any(each == self._accumulated for each in hooks.values())

    def _accumulated(self, param: Any) -> None:
        if param.grad is not None:
            self.tracker.tag(param.grad, "gradients", self.owners.get(id(param)))

    def _before_module(self, module: Any, _: Any) -> None:
        tracker = self.tracker
        path = self.names.get(module)
        if path is None:
            self.name(module)
            path = self.names[module]
        if len(tracker.place.calls) == 1:
            self._enter_forward()
            self.tag(module)
        tracker.call(path)

    def _after_module(self, module: Any, _: Any, __: Any) -> None:
        self.tracker.called()

    def _enter_forward(self) -> None:
        place = self.tracker.place
        if place.phase == "backward":
            return
        phase = self.pinned_phase or (
            "forward" if torch.is_grad_enabled() or not self._trained else "evaluate"
        )
        if place.phase != phase:
            self.tracker.enter(phase)

    def _backward(self, real: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> None:
            outer = self.tracker.place.phase == "backward"
            self._trained = True
            if not outer:
                self.tracker.enter("backward")
            try:
                real(*args, **kwargs)
            finally:
                if not outer:
                    for root in list(self._roots):
                        self.tag(root)
                    self.tracker.enter(self.after_backward)

        return backward

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._optimizers.add(optimizer)
        self.tracker.enter("optimizer step")
        for group in optimizer.param_groups:
            for param in group["params"]:
                owner = self.owners.get(id(param))
                self.tracker.tag(param, "parameters", owner)
                if param.grad is not None:
                    self.tracker.tag(param.grad, "gradients", owner)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        for param, state in optimizer.state.items():
            for value in state.values() if isinstance(state, dict) else ():
                self.tracker.tag(value, "optimizer states", self.owners.get(id(param)))
        if isinstance(optimizer, torch.optim.LBFGS):
            self.notes[:] = [each for each in self.notes if not each.startswith("LBFGS")] + _history(
                optimizer
            )
        self.steps += 1
        self.tracker.enter("forward", self.tracker.place.step + 1)
        if self.on_step is not None:
            self.on_step(self.steps)


def _history(optimizer: torch.optim.LBFGS) -> list[str]:
    """What LBFGS will keep in later steps: in how many it learns a pair depends on data."""
    params, most = optimizer.param_groups[0]["params"], optimizer.param_groups[0]["history_size"]
    kept = len(optimizer.state[params[0]].get("old_dirs") or ())
    pair_bytes = 2 * sum(param.numel() * param.element_size() for param in params)
    if kept >= most:
        return []
    all_bytes = most * pair_bytes
    said = f"LBFGS keeps up to {most} pairs of {format_bytes(pair_bytes)}, {format_bytes(all_bytes)} in all"
    return [f"{said}, and {kept} of them are in what is shown: a long run needs the rest too"]


def _flat(state: dict[Any, Any]) -> Iterator[Any]:
    """Values of a parameter's state, with those in lists (LBFGS)."""
    for each in state.values():
        if isinstance(each, list | tuple):
            yield from each
        else:
            yield each
