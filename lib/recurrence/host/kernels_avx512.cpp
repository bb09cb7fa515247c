// SPDX-License-Identifier: Apache-2.0
#define DELTAPORT_HOST_ISA avx512
#define DELTAPORT_HOST_BYTES 64
#include "recurrence/host/kernels/entry.hpp"
