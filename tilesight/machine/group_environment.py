"""The environment of processes that drive several GPUs of a host."""

from __future__ import annotations

from collections.abc import Mapping

# no NVLink multicast: figures of targets are without it, and so are all times
GROUP_ENVIRONMENT: Mapping[str, str] = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
