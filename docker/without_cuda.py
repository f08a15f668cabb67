"""Stand-ins for CUDA's libraries beside PyPI's torch, without a GPU: without_cuda.py TORCH/LIB.

PyPI's torch for Linux loads NVIDIA's libraries (2 GB) even where nothing calls them. This writes,
for each absent one, a library of the same name and versions: every function returns the error 100,
`cudaErrorNoDevice`; torch then reports no GPU. A wheel without CUDA needs none. Needs pyelftools
and ziglang.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

NVIDIA = re.compile(r"lib(?!cuda\.)(cu|nccl|nv)\w*\.so\.\d+")
"""Names of the libraries, but for the driver's."""
FUNCTION = re.compile(r"_*(cu|nccl|nv)[A-Za-z]")
Asked = dict[str, dict[str, set[str]]]
"""Library → version → symbols."""


def symbols_of(elf: ELFFile) -> Iterator[tuple[str, str, str]]:
    """Yield library, version and name of each undefined symbol; ``defined`` for the others."""
    versions: dict[int, tuple[str, str]] = {}
    if needed := elf.get_section_by_name(".gnu.version_r"):
        for library, auxiliaries in needed.iter_versions():
            versions |= {
                auxiliary["vna_other"]: (library.name, auxiliary.name) for auxiliary in auxiliaries
            }
    indices = elf.get_section_by_name(".gnu.version")
    for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        if symbol["st_shndx"] != "SHN_UNDEF":
            yield "defined", "", symbol.name
        elif symbol["st_info"]["bind"] == "STB_GLOBAL":
            index = indices.get_symbol(number)["ndx"] if indices else 0
            yield *versions.get(index, ("", "")), symbol.name


def absent(folder: Path) -> Asked:
    """Return the symbols of NVIDIA's that the libraries of ``folder`` need."""
    asked: Asked = defaultdict(lambda: defaultdict(set))
    defined: set[str] = set()
    loose: set[str] = set()
    for path in sorted(folder.glob("*.so*")):
        with path.open("rb") as file:
            elf = ELFFile(file)
            for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED"):
                if NVIDIA.fullmatch(tag.needed):
                    asked[tag.needed].update()  # even if it is asked for no symbol
            for library, version, name in symbols_of(elf):
                if library == "defined":
                    defined.add(name)
                elif NVIDIA.fullmatch(library):
                    asked[library][version].add(name)
                elif not library and FUNCTION.match(name):
                    loose.add(name)
    if loose := loose - defined:  # found in whichever library has them
        asked[next(name for name, versions in asked.items() if not versions)][""] = loose
    return asked


def write(library: str, versions: dict[str, set[str]], folder: Path) -> None:
    """Compile one library."""
    functions = sorted(name for names in versions.values() for name in names)
    script = [
        f"{v} {{ {' '.join(f'{name};' for name in sorted(versions[v]))} }};\n"
        for v in sorted(versions)
        if v
    ]
    with tempfile.TemporaryDirectory() as scratch:
        source, exported = Path(scratch, "none.c"), Path(scratch, "versions")
        source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in functions))
        exported.write_text("".join(script))
        words = [
            sys.executable,
            "-I",
            "-m",
            "ziglang",
            "cc",
            "-shared",
            "-nostdlib",
            "-Os",
            "-fno-builtin",
            "-w",
            "-s",
            f"-Wl,-soname,{library}",
        ]
        words += [f"-Wl,--version-script={exported}"] if script else []
        subprocess.run([*words, "-o", folder / library, source], check=True)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for name, versions in absent(place).items():
        write(name, versions, place)
        print(f"{name}: {sum(map(len, versions.values()))} functions")
