// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string_view>

#include "deltaport/comm/session.hpp"

namespace deltaport {

std::string launch_mismatch(int size, const std::function<const char*(const char*)>& environment) {
  if (size != 1) return {};
  const char* allowed = environment("DELTAPORT_ALLOW_SINGLE_RANK");
  if (allowed != nullptr && std::string_view(allowed) == "1") return {};
  // Each launcher tells its processes how many they are.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    const char* value = environment(name);
    if (value == nullptr || std::atoi(value) <= 1) continue;
    const char* cause =
        mpi_info().built_in
            ? "the launcher belongs to another MPI library; use the mpirun of the MPI that deltaport was "
              "built with, or another `srun --mpi=` type (`srun --mpi=list`)"
            : "this deltaport was built without MPI; build it with -DDELTAPORT_ENABLE_MPI=ON";
    return concat(name, "=", value, ", but MPI sees 1 rank: ", cause,
                  ". If one rank is meant, set DELTAPORT_ALLOW_SINGLE_RANK=1");
  }
  return {};
}

}  // namespace deltaport
