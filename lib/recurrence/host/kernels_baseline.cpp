// SPDX-License-Identifier: Apache-2.0
#define DELTAPORT_HOST_ISA baseline
#define DELTAPORT_HOST_BYTES 16
#include "recurrence/host/kernels/entry.hpp"
