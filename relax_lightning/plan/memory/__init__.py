"""How many bytes a run holds, worked out from its configuration alone. Imports no torch.

Every number is for one rank, in bytes. Not counted are the CUDA context and the libraries' workspaces, unused blocks of
the caching allocator, and Megatron's table of rotary angles (4 bytes a position of the context and channel of a head).
"""

from relax_lightning.plan.memory.activations import Activations, activations
from relax_lightning.plan.memory.architectures import Architecture, HybridArchitecture, trunk_of
from relax_lightning.plan.memory.generation import EngineMemory, embedded_engine, kv_cache, sglang_engine
from relax_lightning.plan.memory.known import Known, architecture_of
from relax_lightning.plan.memory.parameters import RoleName, parameters
from relax_lightning.plan.memory.published import PUBLISHED
from relax_lightning.plan.memory.records import checkpoint_bytes, rollout_bytes
from relax_lightning.plan.memory.roles import RoleMemory, role_memory
from relax_lightning.plan.memory.widths import element_bytes, resolved_dtype

__all__ = [
    "PUBLISHED",
    "Activations",
    "Architecture",
    "EngineMemory",
    "HybridArchitecture",
    "Known",
    "RoleMemory",
    "RoleName",
    "activations",
    "architecture_of",
    "checkpoint_bytes",
    "element_bytes",
    "embedded_engine",
    "kv_cache",
    "parameters",
    "resolved_dtype",
    "role_memory",
    "rollout_bytes",
    "sglang_engine",
    "trunk_of",
]
