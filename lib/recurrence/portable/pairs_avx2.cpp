// SPDX-License-Identifier: Apache-2.0
#define DELTAPORT_PAIR_NAMESPACE avx2
#include "recurrence/portable/pair_host.hpp"
