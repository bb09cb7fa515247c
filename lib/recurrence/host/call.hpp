// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the kernels of every instruction set are called with. Plain data and no includes: this header is read
/// by files that are compiled for one instruction set each.
namespace deltaport::recurrence::host {

/// How q, k, v, o, b, w and their gradients are kept in memory. Everything else is float32.
enum class Storage { float32, bfloat16, float16 };
inline constexpr int storages = 3;

inline constexpr int chunk = 64;        // tokens
inline constexpr int slice_width = 64;  // value channels that are worked on together

/// One call: tensors [rows, heads, channels] with row = batch * T + token, null where absent.
struct Call {
  const void *q, *k, *v, *b, *w, *d_o;                    // Storage
  const float *g, *beta, *initial_state, *d_final_state;  // states [N, HV, K, V]
  void *o, *dv, *dw;                                      // Storage
  void *dq, *dk, *db;  // per value head; Storage, or float where wide_* says so
  float *dg, *dbeta;   // per value head
  float *final_state, *d_initial_state;
  const int* cu_seqlens;  // null: every `tokens` rows are a sequence
  long long tokens, rows;
  int key_heads, value_heads, gate_heads, key_dim, value_dim;
  float scale;
  bool wide_keys, wide_gates;  // dq and dk, db: float, because the heads of a group are yet to be added up
};

/// One value head of one sequence with all its tokens, and consecutive slices of its value channels: usually all,
/// one where there are more threads than heads.
struct Task {
  long long sequence;
  int head, first_slice, slices;
};

/// Entry points of one rule and storage type. Workspaces are in floats and 64-byte aligned.
struct Entry {
  void (*forward)(const Call&, const Task&, float* workspace);
  /// With sums = null all of backward. Otherwise of one head and slice what concerns its value channels; the sums
  /// over them that the rest needs go to sums [chunks, sums_size].
  void (*backward)(const Call&, const Task&, float* workspace, float* sums);
  /// The rest of one head and chunk: sums [slices, apart] holds what each slice left of that chunk.
  void (*combine)(const Call&, long long sequence, int head, long long chunk, const float* sums,
                  long long apart, float* workspace);
};

/// One instruction set.
struct Kernels {
  const char* isa;
  Entry gdn[storages], gdn2[storages];
  long long (*forward_workspace)(const Call&);
  long long (*backward_workspace)(const Call&, long long chunks);
  long long (*combine_workspace)(const Call&);
  long long (*sums_size)(const Call&);
  int (*slices)(const Call&);
  /// Runs `rounds` rounds of independent fused multiply-adds; returns the operations done (the ceiling).
  double (*multiply_adds)(long long rounds, float* sink);
};

}  // namespace deltaport::recurrence::host
