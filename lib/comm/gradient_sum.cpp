// SPDX-License-Identifier: Apache-2.0
// The large sum over ranks. MPI_Allreduce would do, but its order of additions depends on the message size,
// the library and its tuning; here it is ranks 0..N-1 for every element, whatever the bucket.
#include <algorithm>

#include "comm/communicator_impl.hpp"
#include "deltaport/core/parallel.hpp"

namespace deltaport {
namespace {

/// sum[i] = parts[0][i] + parts[1][i] + ..., parts of `count` elements one after the other. One index is one
/// block.
template <class T>
struct RankOrderSum {
  static constexpr std::int64_t block = 4096;
  const T* parts;
  int ranks;
  std::int64_t count;
  T* sum;

  void operator()(std::int64_t index) const {
    const std::int64_t begin = index * block;
    const std::int64_t n = count - begin < block ? count - begin : block;
    T* const out = sum + begin;
    const T* part = parts + begin;
    for (std::int64_t i = 0; i < n; ++i) out[i] = part[i];
    for (int r = 1; r < ranks; ++r) {
      part += count;
      for (std::int64_t i = 0; i < n; ++i) out[i] += part[i];
    }
  }
};

template <class T>
void add_in_rank_order(const T* parts, int ranks, std::int64_t count, T* sum) {
  using Sum = RankOrderSum<T>;
  using Policy = Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace, Kokkos::IndexType<std::int64_t>>;
  const std::int64_t blocks = (count + Sum::block - 1) / Sum::block;
  if (blocks > 0)
    Kokkos::parallel_for("deltaport: sum over ranks", Policy(0, blocks), Sum{parts, ranks, count, sum});
}

/// Sums `n` elements at host address `data` over all ranks; `received` has room for size() shares.
template <class T>
void sum_bucket(comm::Transport& transport, T* data, std::int64_t n, T* received) {
  const int size = transport.size();
  const std::int64_t share = (n + size - 1) / size;
  std::vector<int> begin(static_cast<std::size_t>(size) + 1);
  for (int r = 0; r <= size; ++r)
    begin[static_cast<std::size_t>(r)] =
        static_cast<int>(std::min(n, share * r) * static_cast<std::int64_t>(sizeof(T)));
  const std::int64_t own = std::min(n, share * transport.rank());
  const std::int64_t own_count = std::min(n, share * (transport.rank() + 1)) - own;
  auto* const bytes = reinterpret_cast<std::byte*>(data);
  transport.exchange(bytes, begin, reinterpret_cast<std::byte*>(received));
  add_in_rank_order(received, size, own_count, data + own);
  transport.all_gather(bytes, begin);
}

template <class T>
using HostView = Kokkos::View<T*, Kokkos::LayoutRight, Kokkos::SharedHostPinnedSpace,
                              Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T>
using DeviceView =
    Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

template <class T>
void sum_staged_bucket(comm::Transport& transport, const ExecutionSpace& exec, T* device, std::int64_t n,
                       T* staged, T* received) {
  const HostView<T> host(staged, static_cast<std::size_t>(n));
  const DeviceView<T> there(device, static_cast<std::size_t>(n));
  Kokkos::deep_copy(exec, host, there);
  exec.fence("deltaport: gradients on the host");
  sum_bucket(transport, staged, n, received);
  Kokkos::deep_copy(exec, there, host);
  exec.fence("deltaport: gradients back on the device");
}

}  // namespace

template <class T>
void Communicator::sum_gradients(Runtime& runtime, const Tensor<T>& buffer) const {
  if (size() == 1 || buffer.size() == 0) return;
  WorkScope scope(runtime, Work::communication, "deltaport: sum gradients");
  runtime.fence("deltaport: before the sum over ranks");
  const bool staged = impl_->staging == Staging::always || !runs_on_host;
  const std::int64_t bucket = std::min(impl_->bucket_elements, buffer.size());
  const std::int64_t room = bucket + size();  // shares are rounded up
  Tensor<T> scratch;
  T* received = nullptr;
  if (staged) {
    reserve_pinned(static_cast<std::size_t>(room) * sizeof(T));
    received = reinterpret_cast<T*>(impl_->received.data());
  } else {
    scratch = runtime.allocate<T>("comm: shares of all ranks", {room});
    received = scratch.data();
  }
  for (std::int64_t done = 0; done < buffer.size(); done += bucket) {
    const std::int64_t n = std::min(bucket, buffer.size() - done);
    if (staged)
      sum_staged_bucket(*impl_->transport, runtime.compute(), buffer.data() + done, n,
                        reinterpret_cast<T*>(impl_->staged.data()), received);
    else
      sum_bucket(*impl_->transport, buffer.data() + done, n, received);
  }
}

void Communicator::reserve_pinned(std::size_t bytes) const {
  if (impl_->staged.size() >= bytes) return;
  if (impl_->staged.size() == 0) {
    // Handles may outlive Kokkos; their buffers must not.
    Kokkos::push_finalize_hook([weak = std::weak_ptr<Impl>(impl_)] {
      if (const auto impl = weak.lock()) impl->staged = impl->received = Impl::PinnedBuffer();
    });
  }
  impl_->staged = impl_->received = Impl::PinnedBuffer();
  impl_->staged =
      Impl::PinnedBuffer(Kokkos::view_alloc("comm: staged bucket", Kokkos::WithoutInitializing), bytes);
  impl_->received =
      Impl::PinnedBuffer(Kokkos::view_alloc("comm: shares of all ranks", Kokkos::WithoutInitializing), bytes);
}

void Communicator::set_bucket_elements(std::int64_t elements) {
  DELTAPORT_VALIDATE(elements > 0 && elements <= (std::int64_t{1} << 27), CommError, "bucket of ", elements,
                     " elements: must be between 1 and 2^27");
  impl_->bucket_elements = elements;
}
void Communicator::set_staging(Staging staging) {
  impl_->staging = staging;
}

template void Communicator::sum_gradients<float>(Runtime&, const Tensor<float>&) const;
template void Communicator::sum_gradients<double>(Runtime&, const Tensor<double>&) const;

}  // namespace deltaport
