# SPDX-License-Identifier: Apache-2.0
"""Checks the Spack recipe against the build files. Spack itself is not needed: stub modules record the directives."""

import contextlib
import importlib.util
import pathlib
import re
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPO = ROOT / "spack" / "spack_repo" / "deltaport"
RECIPE = REPO / "packages" / "deltaport" / "package.py"

# Spack package that brings each thing CMake looks for.
BRINGS = {
    "Kokkos": "kokkos",
    "yaml-cpp": "yaml-cpp",
    "nlohmann_json": "nlohmann-json",
    "CLI11": "cli11",
    "MPI": "mpi",
    "ZLIB": "zlib-api",
    "CUDAToolkit": "cuda",
    "GTest": "googletest",
    "Python3": "python",
    "xxhash.h": "xxhash",
    "hwloc.h": "hwloc",
    "hwloc": "hwloc",
    "cblas.h": "openblas",
    "openblas": "openblas",
    "cudnn_graph.h": "cudnn",
    "cudnn": "cudnn",
}
PART_OF_THE_SYSTEM = {"Threads", "OpenMP"}
BUILD_TOOLS = {"c", "cxx", "cmake"}
# For developers of deltaport, not for its users; what is compiled for tensor cores serves every architecture.
NO_VARIANT = {"DELTAPORT_WERROR", "DELTAPORT_SANITIZE", "DELTAPORT_CUDA_ARCHITECTURES"}


class Recorder:
    """Stands in for Spack's directives while the recipe is loaded."""

    def __init__(self):
        self.calls = []
        self.conditions = []

    def directive(self, name):
        def record(*arguments, **keywords):
            self.calls.append((name, arguments, dict(keywords, outer=tuple(self.conditions))))
        return record

    @contextlib.contextmanager
    def when(self, condition):
        self.conditions.append(condition)
        yield
        self.conditions.pop()

    def of(self, name):
        return [(arguments, keywords) for call, arguments, keywords in self.calls if call == name]


class StubPackage:
    cuda_arch_values = ("80", "90", "90a", "100f", "120")


def load_recipe():
    recorder = Recorder()
    package = types.ModuleType("spack.package")
    for name in ("license", "maintainers", "version", "variant", "depends_on", "conflicts", "requires"):
        setattr(package, name, recorder.directive(name))
    package.when = recorder.when
    package.join_path = lambda *parts: "/".join(parts)
    modules = {"spack": types.ModuleType("spack"), "spack.package": package}
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        modules[name] = types.ModuleType(name)
    for name, attribute in (("cmake", "CMakePackage"), ("cuda", "CudaPackage")):
        module = types.ModuleType(f"spack_repo.builtin.build_systems.{name}")
        setattr(module, attribute, type(attribute, (StubPackage,), {}))
        modules[module.__name__] = module
    modules["spack_repo.builtin.build_systems.cmake"].generator = recorder.directive("generator")
    saved = dict(sys.modules)
    sys.modules.update(modules)
    try:
        specification = importlib.util.spec_from_file_location("package", RECIPE)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    finally:
        sys.modules.clear()
        sys.modules.update(saved)
    return module.Deltaport, recorder


class FakeSpec:
    def __init__(self, cuda):
        self.cuda = cuda

    def satisfies(self, text):
        return self.cuda and text == "+cuda"


def cmake_args(recipe, cuda, run_tests):
    """The arguments as "NAME=variant" or "NAME:value"."""
    package = recipe.__new__(recipe)
    package.spec = FakeSpec(cuda)
    package.run_tests = run_tests
    package.define = lambda name, value: f"{name}:{value}"
    package.define_from_variant = lambda name, variant: f"{name}={variant}"
    recipe.__getitem__ = lambda self, name: types.SimpleNamespace(kokkos_cxx=f"{name}-compiler")
    return package.cmake_args()


def cmake_text():
    files = [ROOT / "CMakeLists.txt", *sorted((ROOT / "lib").rglob("*.cmake")), *sorted(ROOT.glob("*/**/CMakeLists.txt"))]
    kept = (f for f in files if not {"install", "build", "runs"} & set(f.relative_to(ROOT).parts))
    return "\n".join(re.sub(r"#.*", "", f.read_text(encoding="utf-8")) for f in kept)


RECIPE_CLASS, RECORDED = load_recipe()
CMAKE = cmake_text()
DEPENDENCIES = {arguments[0].split()[0].split("@")[0] for arguments, _ in RECORDED.of("depends_on")}


class Recipe(unittest.TestCase):
    def test_options_exist_and_none_is_forgotten(self):
        declared = set(re.findall(r"option\((DELTAPORT_\w+)", CMAKE)) | set(re.findall(r"set\((DELTAPORT_\w+) [^)]*CACHE", CMAKE))
        used = {re.split("[=:]", argument)[0] for argument in cmake_args(RECIPE_CLASS, False, True)}
        self.assertEqual(used, declared - NO_VARIANT)

    def test_variants_and_options_agree(self):
        variants = {arguments[0]: keywords for arguments, keywords in RECORDED.of("variant")}
        from_variant = dict(a.split("=") for a in cmake_args(RECIPE_CLASS, False, False) if "=" in a)
        self.assertEqual(set(from_variant.values()), set(variants))
        for option, variant in from_variant.items():
            default = re.search(rf'option\({option} "[^"]*" (ON|OFF)\)|set\({option} (AUTO) CACHE', CMAKE)
            self.assertEqual(variants[variant]["default"], default.group(1) != "OFF", option)

    def test_tests_are_built_when_asked_for(self):
        self.assertIn("DELTAPORT_BUILD_TESTS:True", cmake_args(RECIPE_CLASS, False, True))
        self.assertIn("DELTAPORT_BUILD_TESTS:False", cmake_args(RECIPE_CLASS, False, False))

    def test_version_is_the_projects(self):
        version = re.search(r"project\(\s*deltaport\s+VERSION ([\d.]+)", CMAKE).group(1)
        self.assertIn(version, [arguments[0] for arguments, _ in RECORDED.of("version")])

    def test_every_dependency_of_the_build_is_declared(self):
        found = set(re.findall(r"find_package\((\S+)", CMAKE))
        found |= set(re.findall(r"find_path\(\S+\s+(?:NAMES )?(\S+?)[\s)]", CMAKE))
        found |= set(re.findall(r"find_library\(\S+\s+(?:NAMES )?(\S+?)[\s)]", CMAKE))
        found -= PART_OF_THE_SYSTEM
        self.assertEqual(found - set(BRINGS), set(), "CMake looks for something this test does not know")
        self.assertEqual({BRINGS[name] for name in found} - DEPENDENCIES, set(), "not in the recipe")
        self.assertEqual(DEPENDENCIES - BUILD_TOOLS - {BRINGS[name] for name in found}, set(), "not looked for by CMake")

    def test_optional_dependencies_hang_on_their_variant(self):
        for package, variant in {"mpi": "+mpi", "openblas": "+blas", "hwloc": "+hwloc", "zlib-api": "+zlib",
                                 "cli11": "+apps", "cuda": "+cuda", "cudnn": "+cudnn"}.items():
            for arguments, keywords in RECORDED.of("depends_on"):
                if arguments[0].split()[0].split("@")[0] == package:
                    self.assertIn(variant, (keywords.get("when"), *keywords["outer"]), package)

    def test_kokkos_range_is_cmakes(self):
        self.assertRegex(CMAKE, r"find_package\(Kokkos 5\.0\.\.\.<6")
        self.assertTrue(any(arguments[0].startswith("kokkos@5:5 ") for arguments, _ in RECORDED.of("depends_on")))

    def test_cmake_version(self):
        minimum = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)", CMAKE).group(1)
        self.assertIn((f"cmake@{minimum}:",), [arguments for arguments, _ in RECORDED.of("depends_on")])

    def test_kokkos_gets_plain_architectures_only(self):
        forwarded = [arguments[0] for arguments, _ in RECORDED.of("depends_on") if "cuda_arch=" in arguments[0]]
        self.assertIn("kokkos cuda_arch=90", forwarded)
        for specification in forwarded:
            self.assertRegex(specification, r"cuda_arch=\d+$")

    def test_cuda_builds_use_kokkos_compiler(self):
        self.assertIn("CMAKE_CXX_COMPILER:kokkos-compiler", cmake_args(RECIPE_CLASS, True, False))
        self.assertFalse(any("CMAKE_CXX_COMPILER" in a for a in cmake_args(RECIPE_CLASS, False, False)))

    def test_sanity_check_names_a_header_that_is_installed(self):
        for path in RECIPE_CLASS.sanity_check_is_file:
            template = pathlib.Path(path).name + ".in"
            exists = (ROOT / path).is_file() or (ROOT / "lib" / pathlib.Path(path).parent.name / template).is_file()
            self.assertTrue(exists, path)


class Repository(unittest.TestCase):
    def test_namespace_is_the_folder(self):
        text = (REPO / "repo.yaml").read_text(encoding="utf-8")
        self.assertEqual(re.search(r"namespace: (\S+)", text).group(1), REPO.name)
        self.assertRegex(text, r"api: v2\.\d")

    def test_class_and_folder_follow_spacks_naming(self):
        self.assertEqual(RECIPE_CLASS.__name__.lower(), RECIPE.parent.name)

    def test_environments_hold_what_the_recipe_needs(self):
        provider = {"mpi": "openmpi", "zlib-api": "zlib-ng"}
        for name, left_out in (("cpu", {"cuda", "cudnn"}), ("cuda", set())):
            text = (ROOT / "spack" / "environments" / name / "spack.yaml").read_text(encoding="utf-8")
            specs = {line.split()[0].split("@")[0] for line in re.findall(r"^    - (.+)$", text, re.MULTILINE)}
            needed = {provider.get(package, package) for package in DEPENDENCIES - left_out - {"c", "cxx"}} | {"ninja"}
            self.assertEqual(needed, specs, name)
            folder = re.search(r"deltaport: (\S+)", text).group(1)
            self.assertEqual((ROOT / "spack" / "environments" / name / folder).resolve(), REPO)


if __name__ == "__main__":
    unittest.main()
