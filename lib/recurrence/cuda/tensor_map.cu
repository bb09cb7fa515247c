// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/tensor_map.hpp"

#include <cudaTypedefs.h>

namespace deltaport::recurrence::cuda {
namespace {

/// From the driver that is loaded, so that nothing links to it.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                             cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

bool device_has_copy_engine() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

}  // namespace

bool make_tensor_map(CUtensorMap& map, Element element, const void* base, std::int64_t rows, int heads,
                     int dim) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = encode_function();
  map = CUtensorMap{};
  if (encode == nullptr || !device_has_copy_engine() || base == nullptr || rows <= 0) return false;
  if (reinterpret_cast<std::uintptr_t>(base) % 16 != 0) return false;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(heads),
                               static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[2] = {sizes[0] * 2, sizes[0] * sizes[1] * 2};
  const cuuint32_t box[3] = {64, 1, 64}, steps[3] = {1, 1, 1};
  const CUtensorMapDataType type =
      element == Element::bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encode(&map, type, 3, const_cast<void*>(base), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace deltaport::recurrence::cuda
