// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace deltaport::recurrence::portable {

/// Host versions of pair_kernels.hpp for all `dim` channels, by the machine's instruction set.
void host_diagonal_scores(int rows, int dim, long long ld, const float* q, const float* bk, const float* k,
                          const float* step, float scale, float* scores, float* strict, long long ldp,
                          float* carried);
void host_diagonal_scores(int rows, int dim, long long ld, const double* q, const double* bk, const double* k,
                          const double* step, double scale, double* scores, double* strict, long long ldp,
                          double* carried);
void host_diagonal_gradients(int rows, int dim, long long ld, const float* q, const float* bk, const float* k,
                             const float* step, const float* upper, const float* lower, long long ldp,
                             float* dq, float* dbk, float* dk, float* dg);
void host_diagonal_gradients(int rows, int dim, long long ld, const double* q, const double* bk,
                             const double* k, const double* step, const double* upper, const double* lower,
                             long long ldp, double* dq, double* dbk, double* dk, double* dg);

}  // namespace deltaport::recurrence::portable
