// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "deltaport/checkpoint/safetensors.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/core/runtime.hpp"

namespace deltaport::app {

/// A mistake in the user's file or options: exit code 2.
struct OpError : Error {
  explicit OpError(const std::string& message) : Error(message, ExitCode::bad_input) {}
};

/// The input file of `deltaport op`, and the way of its tensors onto the device.
class OpInput {
 public:
  enum class Need { required, optional };

  /// Throws OpError for a tensor that is not among `known`.
  OpInput(const std::string& path, const std::set<std::string>& known);

  /// Type to compute in: that of q, or float32 when that is no floating-point type.
  Dtype dtype() const;
  /// A floating-point tensor as X; absent optional ones are empty. X is double, float, bfloat16 or float16.
  template <class X>
  Tensor<X> load(Runtime& runtime, const char* name, Need need = Need::required) const;
  /// Sequence boundaries, checked on the host, where devices cannot check them.
  Tensor<std::int32_t> load_boundaries(Runtime& runtime, std::int64_t tokens) const;

 private:
  SafetensorsReader reader_;
};

/// Results on their way into the output file.
class OpOutput {
 public:
  explicit OpOutput(Runtime& runtime) : runtime_(runtime) {}
  /// Adds a tensor under its own type; nothing when it is empty.
  template <class X>
  void add(const char* name, const Tensor<X>& x) {
    if (!x.defined()) return;
    auto& host = std::get<std::list<std::vector<X>>>(kept_).emplace_back(to_vector(runtime_.compute(), x));
    writer_.add(name, x.shape(), host);
  }
  void write(const std::string& path) const { writer_.write(path); }

 private:
  template <class... X>
  using Lists = std::tuple<std::list<std::vector<X>>...>;
  Runtime& runtime_;
  SafetensorsWriter writer_{FileOrigin::user};
  Lists<double, float, bfloat16, float16> kept_;  // the writer keeps references
};

}  // namespace deltaport::app
