// SPDX-License-Identifier: Apache-2.0
// Stands in for the implementations that this build does not have. The one that brings `host` or `cuda` defines
// DELTAPORT_RECURRENCE_HOST or DELTAPORT_RECURRENCE_CUDA for this file.
#include "deltaport/recurrence/ceiling.hpp"
#include "recurrence/implementations.hpp"

namespace deltaport::recurrence {
namespace {
[[noreturn]] void fail() {
  throw Error("a recurrence implementation was called that this build does not have");
}
}  // namespace

#define DELTAPORT_ABSENT_CHUNKED(T)                                                                        \
  template <>                                                                                              \
  ForwardResult<GdnSaved<T>, T> forward(Runtime&, const Extents&, const GdnInputs<T>&, const Options&) {   \
    fail();                                                                                                \
  }                                                                                                        \
  template <>                                                                                              \
  ForwardResult<Gdn2Saved<T>, T> forward(Runtime&, const Extents&, const Gdn2Inputs<T>&, const Options&) { \
    fail();                                                                                                \
  }                                                                                                        \
  template <>                                                                                              \
  GdnGradients<T> backward(Runtime&, const Extents&, const GdnSaved<T>&, const Tensor<T>&,                 \
                           const Tensor<Accumulate<T>>&) {                                                 \
    fail();                                                                                                \
  }                                                                                                        \
  template <>                                                                                              \
  Gdn2Gradients<T> backward(Runtime&, const Extents&, const Gdn2Saved<T>&, const Tensor<T>&,               \
                            const Tensor<Accumulate<T>>&) {                                                \
    fail();                                                                                                \
  }
#define DELTAPORT_ABSENT_STEP(T)                                                                     \
  template <>                                                                                        \
  Tensor<T> step(Runtime&, const Extents&, const GdnInputs<T>&, const States<T>&, const Options&) {  \
    fail();                                                                                          \
  }                                                                                                  \
  template <>                                                                                        \
  Tensor<T> step(Runtime&, const Extents&, const Gdn2Inputs<T>&, const States<T>&, const Options&) { \
    fail();                                                                                          \
  }

#ifndef DELTAPORT_RECURRENCE_HOST
double run_multiply_adds(Runtime&, double) {
  return 0.0;
}
namespace host {
bool available() {
  return false;
}
bool supports(Rule, const Extents&, Dtype, const Options&) {
  return false;
}
std::string_view limits() {
  return "nothing";
}
DELTAPORT_ABSENT_CHUNKED(float)
DELTAPORT_ABSENT_CHUNKED(bfloat16)
DELTAPORT_ABSENT_CHUNKED(float16)
}  // namespace host
#endif

#ifndef DELTAPORT_RECURRENCE_CUDA
namespace cuda {
bool available() {
  return false;
}
bool supports(Rule, const Extents&, Dtype, const Options&) {
  return false;
}
bool supports_step(Rule, const Extents&, Dtype, const Options&) {
  return false;
}
std::string_view limits() {
  return "nothing";
}
DELTAPORT_ABSENT_CHUNKED(float)
DELTAPORT_ABSENT_CHUNKED(bfloat16)
DELTAPORT_ABSENT_CHUNKED(float16)
DELTAPORT_ABSENT_STEP(float)
DELTAPORT_ABSENT_STEP(bfloat16)
DELTAPORT_ABSENT_STEP(float16)
}  // namespace cuda
#endif

}  // namespace deltaport::recurrence
