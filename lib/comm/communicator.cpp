// SPDX-License-Identifier: Apache-2.0
#include "deltaport/comm/communicator.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "comm/communicator_impl.hpp"

namespace deltaport {
namespace {

struct Add {
  template <class N>
  N operator()(N a, N b) const {
    return a + b;
  }
};
// A NaN on either side wins, so that no rank's bad value is lost.
struct Larger {
  double operator()(double a, double b) const { return std::isnan(a) || a > b ? a : b; }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const { return std::max(a, b); }
};
struct Smaller {
  double operator()(double a, double b) const { return std::isnan(a) || a < b ? a : b; }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const { return std::min(a, b); }
};

/// Rank 0 combines what all ranks sent, in rank order, and hands the result to all: the same bits everywhere.
template <class N, class Combine>
void all_reduce(comm::Transport& transport, N* values, std::int64_t count, Combine combine) {
  DELTAPORT_VALIDATE(count >= 0 && (count == 0 || values != nullptr), CommError, "all_reduce: ", count,
                     " values at ", static_cast<const void*>(values));
  const int size = transport.size();
  if (size == 1) return;
  constexpr std::int64_t piece = 4096;
  std::vector<N> all;
  for (std::int64_t done = 0; done < count; done += piece) {
    const auto n = static_cast<std::size_t>(std::min(piece, count - done));
    N* here = values + done;
    if (transport.rank() == 0) all.resize(n * static_cast<std::size_t>(size));
    transport.gather(here, n * sizeof(N), all.data());
    if (transport.rank() == 0)
      for (std::size_t i = 0; i < n; ++i) {
        here[i] = all[i];
        for (int r = 1; r < size; ++r) here[i] = combine(here[i], all[static_cast<std::size_t>(r) * n + i]);
      }
    transport.broadcast(here, n * sizeof(N), 0);
  }
}

}  // namespace

Communicator::Communicator() : impl_(std::make_shared<Impl>()) {
  impl_->transport = comm::self_transport();
}
Communicator::Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Communicator Communicator::world() {
  auto impl = std::make_shared<Impl>();
  impl->transport = comm::world_transport();
  const auto node = impl->transport->node();
  impl->local_rank = node->rank();
  impl->local_size = node->size();
  return Communicator(std::move(impl));
}

Communicator Communicator::node() const {
  auto impl = std::make_shared<Impl>();
  impl->transport = impl_->transport->node();
  impl->local_rank = impl->transport->rank();
  impl->local_size = impl->transport->size();
  return Communicator(std::move(impl));
}

int Communicator::rank() const {
  return impl_->transport->rank();
}
int Communicator::size() const {
  return impl_->transport->size();
}
int Communicator::local_rank() const {
  return impl_->local_rank;
}
int Communicator::local_size() const {
  return impl_->local_size;
}

void Communicator::barrier() const {
  impl_->transport->barrier();
}

void Communicator::broadcast(void* data, std::size_t bytes, int root) const {
  DELTAPORT_VALIDATE(root >= 0 && root < size(), CommError, "broadcast from rank ", root, " of ", size());
  DELTAPORT_VALIDATE(bytes == 0 || data != nullptr, CommError, "broadcast of ", bytes,
                     " bytes at a null pointer");
  impl_->transport->broadcast(data, bytes, root);
}

std::string Communicator::broadcast(const std::string& text, int root) const {
  std::uint64_t bytes = text.size();
  broadcast(&bytes, sizeof bytes, root);
  std::string result = rank() == root ? text : std::string(bytes, '\0');
  broadcast(result.data(), bytes, root);
  return result;
}

std::vector<std::string> Communicator::gather(const std::string& text) const {
  auto& transport = *impl_->transport;
  const std::uint64_t bytes = text.size();
  std::vector<std::uint64_t> lengths(transport.rank() == 0 ? static_cast<std::size_t>(size()) : 0);
  transport.gather(&bytes, sizeof bytes, lengths.data());
  if (transport.rank() != 0) {
    transport.send_to_root(text.data(), text.size());
    return {};
  }
  std::vector<std::string> all{text};
  for (int r = 1; r < size(); ++r) {
    all.emplace_back(lengths[static_cast<std::size_t>(r)], '\0');
    transport.receive_from(r, all.back().data(), all.back().size());
  }
  return all;
}

void Communicator::all_reduce_sum(double* values, std::int64_t count) const {
  all_reduce(*impl_->transport, values, count, Add{});
}
void Communicator::all_reduce_sum(std::int64_t* values, std::int64_t count) const {
  all_reduce(*impl_->transport, values, count, Add{});
}
void Communicator::all_reduce_max(double* values, std::int64_t count) const {
  all_reduce(*impl_->transport, values, count, Larger{});
}
void Communicator::all_reduce_max(std::int64_t* values, std::int64_t count) const {
  all_reduce(*impl_->transport, values, count, Larger{});
}
void Communicator::all_reduce_min(double* values, std::int64_t count) const {
  all_reduce(*impl_->transport, values, count, Smaller{});
}
void Communicator::all_reduce_min(std::int64_t* values, std::int64_t count) const {
  all_reduce(*impl_->transport, values, count, Smaller{});
}

void Communicator::check_all(const std::string& error, ExitCode code) const {
  // The lowest failing rank speaks: a smaller number than size() means that somebody failed.
  const std::int64_t speaker = min<std::int64_t>(error.empty() ? size() : rank());
  if (speaker == size()) return;
  const int root = static_cast<int>(speaker);
  std::int32_t number = static_cast<std::int32_t>(code);
  broadcast(&number, sizeof number, root);
  const std::string text = broadcast(error, root);
  throw CollectiveError(size() > 1 ? concat("rank ", root, ": ", text) : text, static_cast<ExitCode>(number),
                        rank());
}

void Communicator::abort(const std::string& message, ExitCode code) const {
  if (size() > 1)
    std::fprintf(stderr, "deltaport: error: rank %d: %s\n", rank(), message.c_str());
  else
    std::fprintf(stderr, "deltaport: error: %s\n", message.c_str());
  impl_->transport->abort(static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

}  // namespace deltaport
