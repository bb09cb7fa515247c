// SPDX-License-Identifier: Apache-2.0
#define DELTAPORT_TILE_NAMESPACE avx512
#define DELTAPORT_TILE_BYTES 64
#define DELTAPORT_TILE_VECTORS 4
#include "core/tile_kernel.hpp"
