// SPDX-License-Identifier: Apache-2.0
// Entry points of one instruction set. Includes nothing but the plain loops.
#define DELTAPORT_PAIR_FUNCTION static inline

namespace deltaport::recurrence::portable::DELTAPORT_PAIR_NAMESPACE {
namespace {

#include "recurrence/portable/pair_kernels.hpp"

template <class T>
void all_gradients(int rows, int dim, long long ld, const T* q, const T* bk, const T* k, const T* step,
                   const T* upper, const T* lower, long long ldp, T* dq, T* dbk, T* dk, T* dg) {
  constexpr int lanes = 64 / static_cast<int>(sizeof(T));
  int d = 0;
  for (; d + lanes <= dim; d += lanes)
    diagonal_gradients<T, lanes>(rows, ld, q + d, bk + d, k + d, step + d, upper, lower, ldp, dq + d, dbk + d,
                                 dk + d, dg + d);
  for (; d < dim; ++d)
    diagonal_gradients<T, 1>(rows, ld, q + d, bk + d, k + d, step + d, upper, lower, ldp, dq + d, dbk + d,
                             dk + d, dg + d);
}

}  // namespace

#define DELTAPORT_PAIR_ENTRY(T)                                                                             \
  void scores(int rows, int dim, long long ld, const T* q, const T* bk, const T* k, const T* step, T scale, \
              T* score, T* strict, long long ldp, T* carried) {                                             \
    diagonal_scores(rows, dim, ld, q, bk, k, step, scale, score, strict, ldp, carried);                     \
  }                                                                                                         \
  void gradients(int rows, int dim, long long ld, const T* q, const T* bk, const T* k, const T* step,       \
                 const T* upper, const T* lower, long long ldp, T* dq, T* dbk, T* dk, T* dg) {              \
    all_gradients(rows, dim, ld, q, bk, k, step, upper, lower, ldp, dq, dbk, dk, dg);                       \
  }
DELTAPORT_PAIR_ENTRY(float)
DELTAPORT_PAIR_ENTRY(double)
#undef DELTAPORT_PAIR_ENTRY

}  // namespace deltaport::recurrence::portable::DELTAPORT_PAIR_NAMESPACE
