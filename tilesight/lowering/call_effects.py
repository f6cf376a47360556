"""What a call in TVM's IR may do beside giving a value."""

from __future__ import annotations

from typing import Any

_READS = 2  # TVM's CallEffectKind: up to here a call changes nothing


def may_change_memory(call: Any) -> bool:
    """Whether a call writes to memory, or may do so: a function of the module itself may do anything."""
    return not hasattr(call.op, "get_attr") or int(call.op.get_attr("TCallEffectKind") or 0) > _READS
