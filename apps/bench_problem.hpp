// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "deltaport/recurrence/recurrence.hpp"

/// Random inputs of one recurrence call, its results, and one key head of both apart, so that a result can be
/// held against `reference` without computing all of it token by token.
namespace deltaport::app {

enum class Kind { gdn, gdn2 };

struct CallShape {
  std::int64_t batch, tokens;
  int key_heads, value_heads, key_dim, value_dim;
};

/// [B, T, heads, width]
struct Field {
  int heads, width;
  std::vector<double> values;
};
using Fields = std::map<std::string, Field>;

/// How the log decays are drawn: `log_sigmoid` of a normal number (0.8 in the mean, as models start and as published
/// figures take them) or `mild`, uniform in [-0.1, 0]. Some kernels use that strong decay forgets.
enum class Gates { log_sigmoid, mild };

/// Unit keys and queries; q k v g d_o and beta, or b and w.
Fields random_fields(Kind kind, const CallShape& shape, Gates gates);

/// What a call of T sees of them, so that a reference in double precision sees the same.
template <class T>
void round_to(Fields& fields);

/// The last key head's group of the last sequence: B = 1, H = 1.
Fields last_group(const CallShape& shape, const Fields& fields);
CallShape last_group(const CallShape& shape);

/// Inputs in device memory and what the call made of them. T may be any type of the recurrences.
template <class T>
class Bench {
 public:
  Bench(Runtime& runtime, Kind kind, const CallShape& shape, const Fields& fields);

  void forward(const recurrence::Options& options);
  void backward();
  /// Sets the results of the last forward or backward to NaN and gives them back, so that the next call, which
  /// gets the same memory, cannot pass off what was there before.
  void poison_forward();
  void poison_backward();
  recurrence::Implementation implementation() const;  ///< that did the last forward
  /// The last key head's group of the last sequence, as last_group() has it, of o, and of dq dk dv dg and dbeta, or db
  /// and dw.
  Fields outputs() const;
  Fields gradients() const;

 private:
  template <class X>
  Tensor<X> upload(const char* name, const Field& field) const;
  Runtime& runtime_;
  Kind kind_;
  CallShape shape_;
  recurrence::GdnInputs<T> gdn_;
  recurrence::Gdn2Inputs<T> gdn2_;
  Tensor<T> d_o_;
  recurrence::ForwardResult<recurrence::GdnSaved<T>, T> gdn_forward_;
  recurrence::ForwardResult<recurrence::Gdn2Saved<T>, T> gdn2_forward_;
  recurrence::GdnGradients<T> gdn_gradients_;
  recurrence::Gdn2Gradients<T> gdn2_gradients_;
};

/// rms(x - expected) / rms(expected); infinite when x is not finite.
double relative_error(const std::vector<double>& x, const std::vector<double>& expected);

}  // namespace deltaport::app
