// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include "deltaport/core/error.hpp"

namespace deltaport::comm {

/// Throws CommError with MPI's own words when a call failed.
inline void check_mpi(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw CommError(concat(what, " failed: ", text, "; look for a rank or a network that went away"));
}

/// True between MPI_Init and MPI_Finalize.
inline bool mpi_is_active() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

}  // namespace deltaport::comm
