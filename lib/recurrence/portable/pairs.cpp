// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set as tile_gemm did.
#include "recurrence/portable/pairs.hpp"

#include <string_view>

#include "deltaport/core/tile_gemm.hpp"

namespace deltaport::recurrence::portable {

#define DELTAPORT_DECLARE(isa, T)                                                                            \
  namespace isa {                                                                                            \
  void scores(int, int, long long, const T*, const T*, const T*, const T*, T, T*, T*, long long, T*);        \
  void gradients(int, int, long long, const T*, const T*, const T*, const T*, const T*, const T*, long long, \
                 T*, T*, T*, T*);                                                                            \
  }
DELTAPORT_DECLARE(baseline, float)
DELTAPORT_DECLARE(baseline, double)
#ifdef DELTAPORT_TILE_X86
DELTAPORT_DECLARE(avx2, float)
DELTAPORT_DECLARE(avx2, double)
DELTAPORT_DECLARE(avx512, float)
DELTAPORT_DECLARE(avx512, double)
#endif
#undef DELTAPORT_DECLARE

namespace {

template <class T>
struct Kernels {
  void (*scores)(int, int, long long, const T*, const T*, const T*, const T*, T, T*, T*, long long, T*);
  void (*gradients)(int, int, long long, const T*, const T*, const T*, const T*, const T*, const T*,
                    long long, T*, T*, T*, T*);
};

template <class T>
Kernels<T> choose() {
#ifdef DELTAPORT_TILE_X86
  const std::string_view isa = tile_gemm_isa();
  if (isa == "avx512") return {avx512::scores, avx512::gradients};
  if (isa == "avx2") return {avx2::scores, avx2::gradients};
#endif
  return {baseline::scores, baseline::gradients};
}

template <class T>
const Kernels<T>& kernels() {
  static const Kernels<T> chosen = choose<T>();
  return chosen;
}

}  // namespace

#define DELTAPORT_DEFINE(T)                                                                                 \
  void host_diagonal_scores(int rows, int dim, long long ld, const T* q, const T* bk, const T* k,           \
                            const T* step, T scale, T* scores, T* strict, long long ldp, T* carried) {      \
    kernels<T>().scores(rows, dim, ld, q, bk, k, step, scale, scores, strict, ldp, carried);                \
  }                                                                                                         \
  void host_diagonal_gradients(int rows, int dim, long long ld, const T* q, const T* bk, const T* k,        \
                               const T* step, const T* upper, const T* lower, long long ldp, T* dq, T* dbk, \
                               T* dk, T* dg) {                                                              \
    kernels<T>().gradients(rows, dim, ld, q, bk, k, step, upper, lower, ldp, dq, dbk, dk, dg);              \
  }
DELTAPORT_DEFINE(float)
DELTAPORT_DEFINE(double)
#undef DELTAPORT_DEFINE

}  // namespace deltaport::recurrence::portable
