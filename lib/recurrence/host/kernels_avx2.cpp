// SPDX-License-Identifier: Apache-2.0
#define DELTAPORT_HOST_ISA avx2
#define DELTAPORT_HOST_BYTES 32
#include "recurrence/host/kernels/entry.hpp"
