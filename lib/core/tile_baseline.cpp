// SPDX-License-Identifier: Apache-2.0
#define DELTAPORT_TILE_NAMESPACE baseline
#define DELTAPORT_TILE_BYTES 16
#define DELTAPORT_TILE_VECTORS 2
#include "core/tile_kernel.hpp"
