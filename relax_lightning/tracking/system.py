"""What the machine is doing: processor, memory, GPU memory."""

from __future__ import annotations

import resource

import psutil


def system_metrics() -> dict[str, float]:
    """Points under the names that MLflow's page of system metrics shows."""
    import torch

    memory = psutil.virtual_memory()
    points = {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_percentage": memory.percent,
        "system/system_memory_usage_megabytes": memory.used / 1e6,
    }
    if torch.cuda.is_available():
        # This process's alone: to ask for another's takes memory of it.
        index = torch.cuda.current_device()
        free, total = torch.cuda.mem_get_info(index)
        points[f"system/gpu_{index}_memory_usage_megabytes"] = (total - free) / 1e6
        points[f"system/gpu_{index}_memory_usage_percentage"] = 100 * (total - free) / total
    return points


def peak_resident_gib() -> float:
    """Largest resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
