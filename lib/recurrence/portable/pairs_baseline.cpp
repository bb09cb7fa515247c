// SPDX-License-Identifier: Apache-2.0
#define DELTAPORT_PAIR_NAMESPACE baseline
#include "recurrence/portable/pair_host.hpp"
