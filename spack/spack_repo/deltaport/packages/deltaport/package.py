# SPDX-License-Identifier: Apache-2.0
from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Deltaport(CMakePackage, CudaPackage):
    """Trains hybrid language models of Gated DeltaNet, Gated DeltaNet 2 and attention layers, on Kokkos and MPI,
    from one YAML file; the recurrences can be linked alone."""

    license("Apache-2.0")

    # No release has been made yet: this is the version that CMakeLists.txt names, from a checkout
    # (spack develop --path <checkout> deltaport@0.1.0).
    version("0.1.0")

    variant("mpi", default=True, description="Train on several ranks")
    variant("blas", default=True, description="Host matrix products through OpenBLAS")
    variant("hwloc", default=True, description="Topology and binding through hwloc")
    variant("zlib", default=True, description="Read gzip-compressed text")
    variant("cudnn", default=True, description="Attention through cuDNN on CUDA builds")
    variant("apps", default=True, description="Build the deltaport program")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    generator("ninja")  # which brings ninja

    depends_on("kokkos@5:5 +openmp")
    depends_on("yaml-cpp@0.7:")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash@0.8:")
    depends_on("cli11@2.1:", when="+apps")
    depends_on("mpi@3:", when="+mpi")
    depends_on("openblas@0.3.21: threads=openmp", when="+blas")
    depends_on("hwloc@2.4:", when="+hwloc")
    depends_on("zlib-api", when="+zlib")
    depends_on("googletest@1.12:", type="test")
    depends_on("python@3:", type="test")

    with when("+cuda"):
        depends_on("cuda@12.2:")
        depends_on("cudnn@9:", when="+cudnn")
        depends_on("kokkos +cuda +wrapper")
        conflicts("cuda_arch=none", msg="deltaport +cuda needs one architecture, e.g. cuda_arch=90")
        # Kokkos knows the plain numbers only: it has no flags for the variants with a letter.
        for arch in CudaPackage.cuda_arch_values:
            if arch.isdigit():
                depends_on(f"kokkos cuda_arch={arch}", when=f"cuda_arch={arch}")
            else:
                conflicts(f"cuda_arch={arch}", msg="give the plain architecture, e.g. cuda_arch=90")
        conflicts("^kokkos@:5.0.1", when="^cuda@13.1:", msg="CUDA 13.1 needs Kokkos 5.0.2")

    conflicts("%gcc@:11", msg="deltaport needs C++20 of GCC 12 or newer")

    sanity_check_is_file = [join_path("include", "deltaport", "core", "version.hpp")]

    def cmake_args(self):
        args = [
            self.define_from_variant("DELTAPORT_ENABLE_MPI", "mpi"),
            self.define_from_variant("DELTAPORT_ENABLE_BLAS", "blas"),
            self.define_from_variant("DELTAPORT_ENABLE_HWLOC", "hwloc"),
            self.define_from_variant("DELTAPORT_ENABLE_ZLIB", "zlib"),
            self.define_from_variant("DELTAPORT_ENABLE_CUDNN", "cudnn"),
            self.define_from_variant("DELTAPORT_BUILD_APPS", "apps"),
            self.define("DELTAPORT_BUILD_TESTS", self.run_tests),
        ]
        # Whether the build is for CUDA follows from Kokkos; its compiler wrapper sees to the flags.
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CXX_COMPILER", self["kokkos"].kokkos_cxx))
        return args
