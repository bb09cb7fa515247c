// SPDX-License-Identifier: Apache-2.0
#include "bench_problem.hpp"

#include <cmath>
#include <limits>
#include <random>

namespace deltaport::app {
namespace {

/// The last of `groups` groups of heads of the last sequence. Only that is widened: a whole result may be a gigabyte.
template <class X>
Field download(Runtime& runtime, const Tensor<X>& x, int heads, int groups) {
  const std::vector<X> host = to_vector(runtime.compute(), x);
  const std::int64_t tokens = x.extent(1), row = x.size() / (x.extent(0) * tokens), kept = row / groups;
  Field field{heads / groups, static_cast<int>(row / heads), {}};
  field.values.reserve(static_cast<std::size_t>(tokens * kept));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const X* const end = host.data() + host.size() - (tokens - 1 - t) * row;
    for (const X* value = end - kept; value != end; ++value)
      field.values.push_back(static_cast<double>(static_cast<Accumulate<X>>(*value)));
  }
  return field;
}

template <class X>
void poison(Runtime& runtime, Tensor<X>& x) {
  if (!x.defined()) return;
  const X nan(std::numeric_limits<Accumulate<X>>::quiet_NaN());
  const Kokkos::View<X*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> flat(
      x.data(), static_cast<std::size_t>(x.size()));
  Kokkos::deep_copy(runtime.compute(), flat, nan);
  x = {};
}

template <class Gradients>
void poison_shared(Runtime& runtime, Gradients& gradients) {
  poison(runtime, gradients.dq);
  poison(runtime, gradients.dk);
  poison(runtime, gradients.dv);
  poison(runtime, gradients.dg);
}

template <class Gradients>
void download_shared(Runtime& runtime, const CallShape& shape, const Gradients& gradients, Fields& out) {
  out["dq"] = download(runtime, gradients.dq, shape.key_heads, shape.key_heads);
  out["dk"] = download(runtime, gradients.dk, shape.key_heads, shape.key_heads);
  out["dv"] = download(runtime, gradients.dv, shape.value_heads, shape.key_heads);
  out["dg"] = download(runtime, gradients.dg, shape.value_heads, shape.key_heads);
}

void normalise(Field& field) {
  const auto width = static_cast<std::size_t>(field.width);
  for (std::size_t row = 0; row < field.values.size(); row += width) {
    double sum = 1e-6;
    for (std::size_t i = row; i < row + width; ++i) sum += field.values[i] * field.values[i];
    for (std::size_t i = row; i < row + width; ++i) field.values[i] /= std::sqrt(sum);
  }
}

}  // namespace

Fields random_fields(Kind kind, const CallShape& shape, Gates gates) {
  std::mt19937_64 engine(20240607);
  const auto draw = [&](int heads, int width, auto next) {
    Field field{heads, width, {}};
    field.values.resize(static_cast<std::size_t>(shape.batch * shape.tokens * heads * width));
    for (double& value : field.values) value = next();
    return field;
  };
  // Sums of four numbers are normal enough here, and quickly drawn: a call may hold half a billion.
  const auto gaussian = [&] {
    const std::uint64_t bits = engine();
    double sum = -2.0 * 65535;
    for (int shift = 0; shift < 64; shift += 16) sum += static_cast<double>((bits >> shift) & 65535);
    return sum * (1.7320508 / 65536);
  };
  const auto positive = [&] { return static_cast<double>(engine() >> 11) * 0x1p-53; };
  const auto gate = [&] {
    return gates == Gates::mild ? -0.1 * positive() : -std::log1p(std::exp(-gaussian()));
  };
  const int h = shape.key_heads, hv = shape.value_heads, k = shape.key_dim, v = shape.value_dim;
  Fields fields{{"q", draw(h, k, gaussian)},
                {"k", draw(h, k, gaussian)},
                {"v", draw(hv, v, gaussian)},
                {"g", draw(hv, kind == Kind::gdn ? 1 : k, gate)},
                {"d_o", draw(hv, v, gaussian)}};
  normalise(fields["q"]);
  normalise(fields["k"]);
  if (kind == Kind::gdn) {
    fields["beta"] = draw(hv, 1, positive);
  } else {
    fields["b"] = draw(hv, k, positive);
    fields["w"] = draw(hv, v, positive);
  }
  return fields;
}

template <class T>
void round_to(Fields& fields) {
  for (auto& [name, field] : fields)
    for (double& value : field.values)
      value = name == "g" || name == "beta" ? static_cast<double>(static_cast<Accumulate<T>>(value))
                                            : static_cast<double>(static_cast<Accumulate<T>>(
                                                  static_cast<T>(static_cast<Accumulate<T>>(value))));
}
template void round_to<float>(Fields&);
template void round_to<double>(Fields&);
template void round_to<bfloat16>(Fields&);
template void round_to<float16>(Fields&);

CallShape last_group(const CallShape& s) {
  return {1, s.tokens, 1, s.value_heads / s.key_heads, s.key_dim, s.value_dim};
}

Fields last_group(const CallShape& shape, const Fields& fields) {
  Fields out;
  for (const auto& [name, field] : fields) {
    Field part{field.heads / shape.key_heads, field.width, {}};
    const std::int64_t row = std::int64_t{field.heads} * field.width;
    const std::int64_t kept = std::int64_t{part.heads} * part.width;
    for (std::int64_t t = (shape.batch - 1) * shape.tokens; t < shape.batch * shape.tokens; ++t) {
      const auto end = field.values.begin() + (t + 1) * row;
      part.values.insert(part.values.end(), end - kept, end);
    }
    out[name] = std::move(part);
  }
  return out;
}

template <class T>
template <class X>
Tensor<X> Bench<T>::upload(const char* name, const Field& field) const {
  std::vector<X> values;
  values.reserve(field.values.size());
  for (double value : field.values) values.push_back(static_cast<X>(static_cast<Accumulate<X>>(value)));
  Shape shape{shape_.batch, shape_.tokens, field.heads};
  const bool scalar =
      kind_ == Kind::gdn && (name == std::string_view("g") || name == std::string_view("beta"));
  if (!scalar) shape.push_back(field.width);
  return from_vector<X>(runtime_.compute(), runtime_.arena(), name, shape, values);
}

template <class T>
Bench<T>::Bench(Runtime& runtime, Kind kind, const CallShape& shape, const Fields& f)
    : runtime_(runtime), kind_(kind), shape_(shape) {
  using A = Accumulate<T>;
  d_o_ = upload<T>("d_o", f.at("d_o"));
  const auto shared = [&](auto& in) {
    in.q = upload<T>("q", f.at("q"));
    in.k = upload<T>("k", f.at("k"));
    in.v = upload<T>("v", f.at("v"));
    in.g = upload<A>("g", f.at("g"));
  };
  if (kind == Kind::gdn) {
    shared(gdn_);
    gdn_.beta = upload<A>("beta", f.at("beta"));
  } else {
    shared(gdn2_);
    gdn2_.b = upload<T>("b", f.at("b"));
    gdn2_.w = upload<T>("w", f.at("w"));
  }
}

template <class T>
void Bench<T>::forward(const recurrence::Options& options) {
  if (kind_ == Kind::gdn)
    gdn_forward_ = recurrence::gdn_forward<T>(runtime_, gdn_, options);
  else
    gdn2_forward_ = recurrence::gdn2_forward<T>(runtime_, gdn2_, options);
}
template <class T>
void Bench<T>::backward() {
  if (kind_ == Kind::gdn)
    gdn_gradients_ = recurrence::gdn_backward<T>(runtime_, gdn_forward_.saved, d_o_);
  else
    gdn2_gradients_ = recurrence::gdn2_backward<T>(runtime_, gdn2_forward_.saved, d_o_);
}
template <class T>
void Bench<T>::poison_forward() {
  poison(runtime_, gdn_forward_.o);
  poison(runtime_, gdn_forward_.saved.prepared);
  poison(runtime_, gdn2_forward_.o);
  poison(runtime_, gdn2_forward_.saved.prepared);
  gdn_forward_ = {};
  gdn2_forward_ = {};
}
template <class T>
void Bench<T>::poison_backward() {
  poison_shared(runtime_, gdn_gradients_);
  poison(runtime_, gdn_gradients_.dbeta);
  poison_shared(runtime_, gdn2_gradients_);
  poison(runtime_, gdn2_gradients_.db);
  poison(runtime_, gdn2_gradients_.dw);
  gdn_gradients_ = {};
  gdn2_gradients_ = {};
}
template <class T>
recurrence::Implementation Bench<T>::implementation() const {
  return kind_ == Kind::gdn ? gdn_forward_.saved.options.implementation
                            : gdn2_forward_.saved.options.implementation;
}

template <class T>
Fields Bench<T>::outputs() const {
  return {{"o", download(runtime_, kind_ == Kind::gdn ? gdn_forward_.o : gdn2_forward_.o, shape_.value_heads,
                         shape_.key_heads)}};
}
template <class T>
Fields Bench<T>::gradients() const {
  Fields out;
  if (kind_ == Kind::gdn) {
    download_shared(runtime_, shape_, gdn_gradients_, out);
    out["dbeta"] = download(runtime_, gdn_gradients_.dbeta, shape_.value_heads, shape_.key_heads);
  } else {
    download_shared(runtime_, shape_, gdn2_gradients_, out);
    out["db"] = download(runtime_, gdn2_gradients_.db, shape_.value_heads, shape_.key_heads);
    out["dw"] = download(runtime_, gdn2_gradients_.dw, shape_.value_heads, shape_.key_heads);
  }
  return out;
}

template class Bench<float>;
template class Bench<double>;
template class Bench<bfloat16>;
template class Bench<float16>;

double relative_error(const std::vector<double>& x, const std::vector<double>& expected) {
  if (x.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - expected[i]) * (x[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  const double relative = size == 0 ? std::sqrt(error) : std::sqrt(error / size);
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

}  // namespace deltaport::app
