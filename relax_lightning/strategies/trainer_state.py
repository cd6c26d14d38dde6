"""The trainer's part of a checkpoint as JSON and safetensors: reading it runs nothing."""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from relax_lightning.megatron.plain_reading import unreadable

STATE, TENSORS = "state.json", "state.safetensors"
PICKLED = "state.pt"
"""What earlier versions wrote, by `torch.save`."""

_SIGN = "!"
"""Begins the name of what JSON does not know: `{"!tuple": [...]}`."""


class TrainerState:
    """A tree of plain values, taken apart into JSON and tensors.

    Args:
        tree: Mappings, lists, tuples, sets, text, bytes, numbers, None, tensors and arrays.

    Raises:
        ValueError: It holds anything else; says where.
    """

    def __init__(self, tree: Any) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._tree = self._apart(tree, ())

    def write(self, folder: Path) -> None:
        """Write `state.json` and `state.safetensors` into a folder that is there."""
        # By way of memory: the library itself does not say what the disk refused.
        (folder / TENSORS).write_bytes(save_tensors(self._tensors))
        (folder / STATE).write_text(json.dumps(self._tree))

    def _apart(self, value: Any, where: tuple[str, ...]) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, str):
            # Of an enumeration, or numpy's: equal to the plain text, and hashed alike.
            return str.__str__(value)
        if isinstance(value, Tensor | np.ndarray | np.generic):
            return self._tensor(value, where)
        if type(value) is list:
            return self._all(value, where)
        if type(value) in (tuple, torch.Size):
            return {"!tuple": self._all(value, where)}
        if type(value) in (set, frozenset):
            return {f"!{type(value).__name__}": self._all(value, where)}
        if type(value) is bytes:
            return {"!bytes": base64.b64encode(value).decode()}
        if type(value) in (dict, OrderedDict):
            return self._mapping(value, where)
        if isinstance(value, int | float):
            return int(value) if isinstance(value, int) else float(value)
        raise ValueError(_refused(value, where))

    def _all(self, values: Any, where: tuple[str, ...]) -> list[Any]:
        if len(where) > 100:
            raise ValueError(_refused(values, where[:4]))
        return [self._apart(value, (*where, str(number))) for number, value in enumerate(values)]

    def _mapping(self, value: Mapping[Any, Any], where: tuple[str, ...]) -> dict[str, Any]:
        if all(type(name) is str and not name.startswith(_SIGN) for name in value):
            if len(where) > 100:
                raise ValueError(_refused(value, where[:4]))
            return {name: self._apart(held, (*where, name)) for name, held in value.items()}
        pairs = [
            [self._apart(name, where), self._apart(held, (*where, str(name)))] for name, held in value.items()
        ]
        return {"!dict": pairs}

    def _tensor(
        self, value: Tensor | np.ndarray[Any, Any] | np.generic, where: tuple[str, ...]
    ) -> dict[str, Any]:
        name = str(len(self._tensors))
        try:
            tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
            self._tensors[name] = tensor.cpu().clone(memory_format=torch.contiguous_format)
            save_tensors({name: self._tensors[name]})
        except Exception as error:
            # An array of objects or dates, a sparse or a quantized tensor.
            raise ValueError(_refused(value, where)) from error
        return {"!tensor" if isinstance(value, Tensor) else "!array": name}


def read_state(folder: Path, *, trusted: bool = False) -> dict[str, Any]:
    """What `TrainerState.write` wrote, or `torch.save` before it; tensors are on the CPU.

    Args:
        folder: The `trainer` folder of a checkpoint.
        trusted: Also take pickled objects of any class, which may run code.

    Raises:
        ValueError: It cannot be read, or is pickled and holds more than plain values.
    """
    path = folder / (STATE if (folder / STATE).is_file() else PICKLED)
    try:
        if path.name == PICKLED:
            state = torch.load(path, map_location="cpu", weights_only=not trusted)
        else:
            tensors = load_tensors((folder / TENSORS).read_bytes())
            state = _together(json.loads(path.read_text()), tensors)
    except Exception as error:
        # Bytes that were written over may fail in any way.
        raise unreadable(path, error) from error
    if not isinstance(state, dict):
        raise ValueError(
            f"{path}: wanted a mapping, got {type(state).__name__}; resume from an older iteration"
        )
    return state


def refuse_odd_state(name: str, state: Any) -> None:
    """Refuse the state of a callback that could not be saved.

    Raises:
        ValueError: It holds more than plain values; names the callback and says where.
    """
    TrainerState({"callbacks": {name: state}})


def _refused(value: Any, where: tuple[str, ...]) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    owner = (
        f"the state_dict of the callback {where[1]}" if where[:1] == ("callbacks",) else "the trainer's state"
    )
    place = ".".join(where[2:] if where[:1] == ("callbacks",) else where)
    return (
        f"wanted plain values in {owner} (numbers, text, lists, mappings, tensors, None), got a {kind} at "
        f"{place or 'its top'}; checkpoints hold no other objects: give its parts, or leave it out"
    )


def _together(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_together(held, tensors) for held in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, held),) = value.items()
        if name in _KINDS:
            return _KINDS[name](held, tensors)
    return {name: _together(held, tensors) for name, held in value.items()}


_KINDS: dict[str, Any] = {
    "!tensor": lambda held, tensors: tensors[held],
    # Of no dimension: one of numpy's numbers.
    "!array": lambda held, tensors: tensors[held].numpy()[()],
    "!bytes": lambda held, tensors: base64.b64decode(held),
    "!tuple": lambda held, tensors: tuple(_together(held, tensors)),
    "!set": lambda held, tensors: set(_together(held, tensors)),
    "!frozenset": lambda held, tensors: frozenset(_together(held, tensors)),
    "!dict": lambda held, tensors: {_together(k, tensors): _together(v, tensors) for k, v in held},
}
