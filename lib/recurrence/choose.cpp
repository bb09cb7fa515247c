// SPDX-License-Identifier: Apache-2.0
// Which implementation does a call.
#include "recurrence/choose.hpp"

#include <algorithm>
#include <cmath>

namespace deltaport::recurrence {
namespace {

// The type that `host` would see.
Dtype dtype_on_host(Dtype dtype, const Options& options) {
  return dtype == Dtype::f64 || plain(options) ? dtype : Dtype::f32;
}

bool can_do(Implementation implementation, Call call, Rule rule, const Extents& x, Dtype dtype,
            const Options& options) {
  switch (implementation) {
    case Implementation::cuda:
      if (!cuda::available() || dtype == Dtype::f64) return false;
      return call == Call::step ? cuda::supports_step(rule, x, dtype, options)
                                : cuda::supports(rule, x, dtype, options);
    case Implementation::host:
      if (!host::available() || dtype == Dtype::f64) return false;
      return call == Call::step ||
             host::supports(rule, x, dtype_on_host(dtype, options), plain_options(options));
    default:
      return true;
  }
}

std::string available_names() {
  std::string names = "auto";
  for (auto each :
       {Implementation::reference, Implementation::portable, Implementation::host, Implementation::cuda})
    if (available(each)) names += ", " + std::string(name_of(each));
  return names;
}

}  // namespace

std::string_view name_of(Implementation implementation) {
  switch (implementation) {
    case Implementation::reference:
      return "reference";
    case Implementation::portable:
      return "portable";
    case Implementation::host:
      return "host";
    case Implementation::cuda:
      return "cuda";
    default:
      return "auto";
  }
}

bool available(Implementation implementation) {
  if (implementation == Implementation::host) return host::available();
  if (implementation == Implementation::cuda) return cuda::available();
  return true;
}

Options resolve(const char* operation, Call call, Rule rule, const Extents& x, Dtype dtype, Options options) {
  if (options.scale == 0.0) options.scale = 1.0 / std::sqrt(static_cast<double>(x.key_dim));
  if (options.implementation == Implementation::automatic) {
    options.implementation = Implementation::portable;
    for (auto fast : {Implementation::cuda, Implementation::host})
      if (can_do(fast, call, rule, x, dtype, options)) options.implementation = fast;
    return options;
  }
  const std::string_view name = name_of(options.implementation);
  DELTAPORT_VALIDATE(available(options.implementation), ShapeError, operation, ": implementation ", name,
                     " is not available in this build with execution space ", ExecutionSpace::name(),
                     "; expected one of ", available_names());
  DELTAPORT_VALIDATE(can_do(options.implementation, call, rule, x, dtype, options), ShapeError, operation,
                     ": implementation ", name, " cannot do T = ", deltaport::name_of(dtype),
                     ", K = ", x.key_dim, ", V = ", x.value_dim, ", H = ", x.key_heads,
                     ", HV = ", x.value_heads, ", chunk_size = ", options.chunk_size, "; it does ",
                     options.implementation == Implementation::cuda ? cuda::limits() : host::limits(),
                     ". auto or portable do any");
  return options;
}

Implementation implementation_of(Dtype dtype, std::int64_t key_dim, std::int64_t value_dim,
                                 const Options& options) {
  // Nothing else of the sizes matters to any implementation, nor does the rule.
  Extents x;
  x.key_dim = static_cast<int>(key_dim);
  x.value_dim = static_cast<int>(value_dim);
  if (options.implementation != Implementation::automatic) return options.implementation;
  return resolve("implementation_of", Call::chunked, Rule::gdn, x, dtype, options).implementation;
}

namespace {

// Whole KiB, which is how `cuda` lays out each part; in floating point, which no size can overflow.
double kibibytes(double bytes) {
  return 1024.0 * std::ceil(bytes / 1024.0);
}
bool prepares(Dtype dtype, std::int64_t key_dim, std::int64_t value_dim, const Options& options) {
  return options.keep == Keep::preparation && options.save_for_backward &&
         (dtype == Dtype::bf16 || dtype == Dtype::f16) && options.chunk_size == 64 && key_dim <= 128 &&
         implementation_of(dtype, key_dim, value_dim, options) == Implementation::cuda;
}
// Chunks with their heads: every sequence may end with a chunk that is not full.
double chunk_heads(std::int64_t tokens, std::int64_t sequences, std::int64_t heads) {
  return (std::floor(static_cast<double>(tokens) / 64.0) + static_cast<double>(sequences) + 1.0) *
         static_cast<double>(heads);
}
std::int64_t whole(double bytes) {
  constexpr double most = 9e18;
  return static_cast<std::int64_t>(std::min(bytes, most));
}

}  // namespace

// Of a chunk and head: X, R, the two parts of A, six factors a row, a decay.
std::int64_t gdn_prepared_bytes(Dtype dtype, std::int64_t tokens, std::int64_t sequences,
                                std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim,
                                const Options& options) {
  if (!prepares(dtype, key_dim, value_dim, options)) return 0;
  const double count = chunk_heads(tokens, sequences, value_heads), padded_k = key_dim <= 64 ? 64 : 128;
  return whole(kibibytes(count * padded_k * 128) + count * 3 * 8192 + kibibytes(count * 6 * 256) +
               kibibytes(count * 4));
}
// K~, Q~, X, R, the two parts of A, the chunk's decay by channels, a bound, the lengths of the rows of q and k.
std::int64_t gdn2_prepared_bytes(Dtype dtype, std::int64_t tokens, std::int64_t sequences,
                                 std::int64_t gate_heads, std::int64_t key_dim, std::int64_t value_dim,
                                 const Options& options) {
  if (!prepares(dtype, key_dim, value_dim, options)) return 0;
  const double count = chunk_heads(tokens, sequences, gate_heads), padded_k = key_dim <= 64 ? 64 : 128;
  return whole(3 * count * padded_k * 128 + count * 3 * 8192 + kibibytes(count * padded_k * 4) +
               kibibytes(count * 4) + kibibytes(count * 512));
}

}  // namespace deltaport::recurrence
