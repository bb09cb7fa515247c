# SPDX-License-Identifier: Apache-2.0
"""Holds the repository to its own layout: what stands where, who may include whom, what every file carries."""

import pathlib
import re
import statistics
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

TOP_LEVEL = set("lib include apps yaml tests spack CMakeLists.txt README.md CMakePresets.json CHANGELOG.md LICENSE".split())

# A folder includes only these (and itself).
MAY_INCLUDE = {
    "core": [],
    "comm": ["core"],
    "config": ["core"],
    "data": ["core", "config"],
    "recurrence": ["core"],
    "offload": ["core"],
    "graph": ["core"],
    "model": ["core", "config", "recurrence"],
    "optim": ["core", "config", "recurrence", "model", "comm"],
    "checkpoint": ["core", "config", "recurrence", "model", "optim", "comm"],
    "train": ["core", "config", "recurrence", "model", "optim", "comm", "checkpoint", "data", "offload", "graph"],
}

# An outside library is known to as few folders as can be.
OUTSIDE_HEADERS = {
    r"mpi\.h": {"comm"},
    r"hwloc.*": {"core", "offload"},
    r"yaml-cpp/.*": {"config"},
    r"cblas\.h": {"core"},
    r"cublas.*": {"core"},
    r"xxhash\.h": {"checkpoint", "data"},
    r"zlib\.h": {"data"},
    r"pcre2\.h": {"data"},
    r"utf8proc\.h": {"data"},
}

# One body for several instruction sets, each in a namespace of its own.
INCLUDED_SEVERAL_TIMES = {
    "lib/core/tile_kernel.hpp",
    "lib/recurrence/portable/pair_host.hpp",
    "lib/recurrence/portable/pair_kernels.hpp",
}

# Numbers that tests compare with, not text.
BINARY_SUFFIXES = {".safetensors"}

SOURCE_SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh"}
CARRIES_LICENSE = SOURCE_SUFFIXES | {".cmake", ".py"}


def tracked_files():
    """Paths relative to the root: what git tracks, or every file of a source archive."""
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listing.returncode == 0 and listing.stdout:
        names = listing.stdout.split("\0")
        return sorted(pathlib.Path(name) for name in names if name and (ROOT / name).is_file())
    skipped = ("build", "runs", ".git", ".cache")
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return sorted(path for path in files if not path.parts[0].startswith(skipped) and "__pycache__" not in path.parts)


FILES = [path for path in tracked_files() if path.suffix not in BINARY_SUFFIXES]


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


def sources(*tops):
    return [path for path in FILES if path.parts[0] in tops and path.suffix in SOURCE_SUFFIXES]


def folder_of(path):
    """The library folder a source belongs to: lib/<folder>/... or include/deltaport/<folder>/..."""
    return path.parts[1] if path.parts[0] == "lib" else path.parts[2]


def included_by(path):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text_of(path), re.MULTILINE)


class Layout(unittest.TestCase):
    def test_the_top_level_holds_the_agreed_entries_only(self):
        found = {path.parts[0] for path in FILES}
        extra = {name for name in found - TOP_LEVEL if not name.startswith(".")}
        self.assertEqual(extra, set())
        self.assertEqual(TOP_LEVEL - found, set(), "missing")

    def test_every_folder_of_lib_has_a_short_readme(self):
        folders = {path.parts[1] for path in FILES if path.parts[0] == "lib"}
        for folder in sorted(folders):
            with self.subTest(folder=folder):
                readme = ROOT / "lib" / folder / "README.md"
                self.assertTrue(readme.is_file(), "no README.md")
                self.assertIn(len(readme.read_text(encoding="utf-8").splitlines()), range(5, 21), "5 to 20 lines")

    def test_every_public_folder_has_a_library_and_tests(self):
        for folder in MAY_INCLUDE:
            with self.subTest(folder=folder):
                for top in ("lib", "include/deltaport", "tests"):
                    self.assertTrue((ROOT / top / folder).is_dir(), f"{top}/{folder} is missing")

    def test_folder_and_file_names(self):
        for path in sources("lib", "include", "apps", "tests"):
            with self.subTest(path=str(path)):
                self.assertRegex(path.stem, r"^[a-z][a-z0-9_]*$")
                self.assertFalse({"utils", "util", "common", "misc", "helpers"} & set(path.parts + (path.stem,)))

    def test_every_source_is_built(self):
        for path in sources("lib", "apps", "tests"):
            if path.suffix != ".cpp" or "install" in path.parts:
                continue  # those belong to outside projects
            with self.subTest(path=str(path)):
                # The nearest CMakeLists.txt upwards lists it, as written from there.
                folder = path.parent
                while not (ROOT / folder / "CMakeLists.txt").is_file():
                    folder = folder.parent
                name = str(path.relative_to(folder))
                self.assertRegex(text_of(folder / "CMakeLists.txt"), rf"(?<![\w/]){re.escape(name)}(?!\w)")


class Includes(unittest.TestCase):
    def test_folders_include_only_what_is_below_them(self):
        for path in sources("lib", "include"):
            folder = folder_of(path)
            allowed = set(MAY_INCLUDE[folder]) | {folder}
            for header in included_by(path):
                match = re.match(r"(?:deltaport/)?([a-z0-9_]+)/", header)
                if match and match.group(1) in MAY_INCLUDE:
                    with self.subTest(path=str(path), header=header):
                        self.assertIn(match.group(1), allowed)

    def test_public_headers_include_public_headers_only(self):
        for path in sources("include"):
            for header in included_by(path):
                with self.subTest(path=str(path), header=header):
                    self.assertNotIn(header.split("/")[0], MAY_INCLUDE, "a header of lib/ is private")

    def test_outside_libraries_stay_in_one_folder(self):
        for path in sources("lib", "include"):
            for header in included_by(path):
                for pattern, folders in OUTSIDE_HEADERS.items():
                    if re.fullmatch(pattern, header):
                        with self.subTest(path=str(path), header=header):
                            self.assertIn(folder_of(path), folders)

    def test_headers_are_guarded(self):
        for path in sources("lib", "include", "apps", "tests"):
            if path.suffix == ".hpp" and str(path) not in INCLUDED_SEVERAL_TIMES:
                with self.subTest(path=str(path)):
                    self.assertTrue("#pragma once" in text_of(path), "no #pragma once")


class Text(unittest.TestCase):
    def test_every_source_names_its_licence(self):
        for path in FILES:
            script = text_of(path).startswith("#!") if path.suffix == "" and path.name != "LICENSE" else False
            if path.suffix in CARRIES_LICENSE or path.name == "CMakeLists.txt" or script:
                with self.subTest(path=str(path)):
                    self.assertIn("SPDX-License-Identifier: Apache-2.0", "\n".join(text_of(path).splitlines()[:3]))

    def test_no_path_of_one_machine_and_no_host_name(self):
        # Put together here, so that this file does not hold what it forbids.
        folders = "|".join(("home", "root", "tmp", "work", "mnt", "Users"))
        forbidden = {
            "a path of one machine": re.compile(r"(?<![\w.$})/*-])/(?:" + folders + r")/"),
            "a host name": re.compile(r"(?<![\w.-])(?!arxiv\.|json-schema\.|kokkos\.org|www\.w3\.org)"
                                      r"[a-z0-9-]+\.(?:[a-z0-9-]+\.)*(?:org|com|net|io|dev|internal)\b"),
        }
        for path in FILES:
            if path.name == "LICENSE":
                continue
            for number, line in enumerate(text_of(path).splitlines(), 1):
                for what, pattern in forbidden.items():
                    if pattern.search(line):
                        with self.subTest(where=f"{path}:{number}", line=line.strip()[:100]):
                            self.fail(what)

    def test_files_stay_readable(self):
        lengths = {path: len(text_of(path).splitlines()) for path in sources("lib", "include", "apps")}
        self.assertLessEqual(statistics.median(lengths.values()), 130)
        for path, length in lengths.items():
            if path.stem.endswith("_table"):
                continue  # rows of data, not code
            with self.subTest(path=str(path)):
                self.assertLessEqual(length, 500, "split it")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[1:])
