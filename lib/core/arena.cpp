// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/arena.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "core/free_ranges.hpp"
#include "deltaport/core/enqueue.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/core/tensor.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace deltaport {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Under the address sanitizer, released arena memory is as untouchable as freed memory.
void mark_unusable([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  if constexpr (Kokkos::SpaceAccessibility<HostSpace, MemorySpace>::accessible)
    ASAN_POISON_MEMORY_REGION(data, bytes);
#endif
}
void mark_usable([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  if constexpr (Kokkos::SpaceAccessibility<HostSpace, MemorySpace>::accessible)
    ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#endif
}

// Large pages make strided access to big activations much steadier on hosts.
void advise_large_pages([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  if constexpr (Kokkos::SpaceAccessibility<HostSpace, MemorySpace>::accessible) {
    constexpr std::uintptr_t page = 2u << 20;
    const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
    if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
#endif
}

}  // namespace

class ArenaState : public std::enable_shared_from_this<ArenaState> {
 public:
  explicit ArenaState(ArenaOptions options) : options_(options) {}

  /// A region: hands out places from `begin` on, in `block` as far as it reaches. The stretch is far longer than any
  /// block, so that places do not depend on how much of it is backed by memory. `measures`: places beyond are imagined.
  ArenaState(std::byte* begin, std::shared_ptr<Storage> block, bool measures, ArenaOptions options)
      : options_(options), region_begin_(begin), region_block_(std::move(block)), region_measures_(measures) {
    free_.add_slab(begin, region_span);
  }

  ~ArenaState() {
    for (const Slab& slab : slabs_) release_slab(slab);
  }

  std::shared_ptr<Storage> allocate(std::string_view name, std::size_t bytes) {
    if (bytes == 0) return std::make_shared<Storage>(shared_from_this(), nullptr, 0, std::string(name));
    const std::size_t rounded = round_up(bytes);
    DELTAPORT_VALIDATE(rounded >= bytes, OutOfMemory, "'", name, "' asks for ", bytes,
                       " bytes: size overflow");
    std::byte* data = nullptr;
    {
      std::lock_guard lock(mutex_);
      data = free_.take(rounded);
      if (data == nullptr) {
        add_slab(name, rounded);
        data = free_.take(rounded);
      }
      if (region_begin_ != nullptr) grow_region(name, data, rounded);
      stats_.allocated += rounded;
      live_.emplace(data, ArenaBlock{std::string(name), rounded});
      stats_.blocks = live_.size();
      if (stats_.allocated > stats_.allocated_peak) {
        stats_.allocated_peak = stats_.allocated;
        peak_is_stale_ = true;
      }
    }
    if (is_imagined(data, rounded))
      return std::make_shared<Storage>(shared_from_this(), data, bytes, std::string(name));
    mark_usable(data, rounded);
    // On devices the fill waits for everything, which a capture forbids.
    if (options_.poison && (runs_on_host || !is_recording()))
      enqueue("deltaport: poison", [data, rounded] { fill(data, rounded); });
    return std::make_shared<Storage>(shared_from_this(), data, bytes, std::string(name));
  }

  void release(std::byte* data) noexcept {
    if (data == nullptr) return;
    std::lock_guard lock(mutex_);
    // The set of blocks at the peak is taken when the first of them goes, not at every allocation.
    if (peak_is_stale_) {
      peak_.clear();
      for (const auto& entry : live_) peak_.push_back(entry.second);
      peak_is_stale_ = false;
    }
    const auto entry = live_.find(data);
    const std::size_t size = entry->second.bytes;
    live_.erase(entry);
    stats_.allocated -= size;
    stats_.blocks = live_.size();
    if (region_begin_ == nullptr) mark_unusable(data, size);
    free_.give(data, size);
  }

  std::size_t region_bytes() const {
    std::lock_guard lock(mutex_);
    return region_bytes_;
  }
  const ArenaOptions& options() const { return options_; }

  ArenaStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peak() {
    std::lock_guard lock(mutex_);
    stats_.allocated_peak = stats_.allocated;
    stats_.reserved_peak = stats_.reserved;
    peak_is_stale_ = true;
  }

  std::vector<ArenaBlock> blocks(bool at_peak) const {
    std::lock_guard lock(mutex_);
    std::vector<ArenaBlock> result;
    if (at_peak && !peak_is_stale_) {
      result = peak_;
    } else {
      for (const auto& entry : live_) result.push_back(entry.second);
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const ArenaBlock& a, const ArenaBlock& b) { return a.bytes > b.bytes; });
    return result;
  }

  std::size_t trim() {
    std::lock_guard lock(mutex_);
    std::size_t given_back = 0;
    for (auto slab = slabs_.begin(); slab != slabs_.end();) {
      if (free_.remove_slab(slab->begin, slab->bytes)) {
        release_slab(*slab);
        given_back += slab->bytes;
        stats_.reserved -= slab->bytes;
        slab = slabs_.erase(slab);
      } else {
        ++slab;
      }
    }
    return given_back;
  }

  /// Of a place in a region: there is no memory.
  bool is_imagined(const std::byte* data, std::size_t bytes) const {
    return region_begin_ != nullptr && end_of(data, round_up(bytes)) > backed_bytes();
  }

 private:
  struct Slab {
    void* raw;
    std::byte* begin;
    std::size_t bytes;
  };

  std::size_t end_of(const std::byte* data, std::size_t rounded) const {
    return static_cast<std::size_t>(data - region_begin_) + rounded;
  }
  std::size_t backed_bytes() const { return region_block_ == nullptr ? 0 : region_block_->bytes(); }

  void grow_region(std::string_view name, std::byte* data, std::size_t rounded) {
    const std::size_t end = end_of(data, rounded);
    if (!region_measures_ && end > region_block_->bytes()) {
      free_.give(data, rounded);
      throw CaptureError(concat(
          "'", name, "' asks for ", rounded, " bytes at ", end - rounded, " of the ", region_block_->bytes(),
          " that captured work was measured to need: its requests for memory change from run "
          "to run"));
    }
    region_bytes_ = std::max(region_bytes_, end);
  }

  static void release_slab(const Slab& slab) {
    mark_usable(slab.begin, slab.bytes);
    // A tensor that outlives Kokkos::finalize cannot be given back any more; the process is ending then.
    if (Kokkos::is_initialized()) Kokkos::kokkos_free<MemorySpace>(slab.raw);
  }

  void add_slab(std::string_view name, std::size_t rounded) {
    const std::size_t bytes = std::max(rounded, round_up(options_.slab_bytes));
    void* raw = nullptr;
    try {
      raw = Kokkos::kokkos_malloc<MemorySpace>("deltaport: arena slab", bytes + alignment);
    } catch (const std::exception& e) {
      std::string largest;
      std::vector<ArenaBlock> sorted;
      for (const auto& entry : live_) sorted.push_back(entry.second);
      std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
      for (std::size_t i = 0; i < std::min<std::size_t>(5, sorted.size()); ++i)
        largest += concat(i ? ", " : "", sorted[i].name, " ", sorted[i].bytes);
      throw OutOfMemory(concat("'", name, "' asks for ", rounded, " bytes and no more memory can be had: ",
                               stats_.allocated, " bytes live, ", stats_.reserved,
                               " reserved; largest live blocks: ", largest.empty() ? "none" : largest,
                               ". Lower train.micro_batch or data.seq_len. (", e.what(), ")"));
    }
    const auto address = reinterpret_cast<std::uintptr_t>(raw);
    auto* begin = reinterpret_cast<std::byte*>((address + alignment - 1) / alignment * alignment);
    slabs_.push_back({raw, begin, bytes});
    advise_large_pages(begin, bytes);
    mark_unusable(begin, bytes);
    free_.add_slab(begin, bytes);
    stats_.reserved += bytes;
    stats_.reserved_peak = std::max(stats_.reserved_peak, stats_.reserved);
    ++stats_.slab_requests;
  }

  static void fill(std::byte* data, std::size_t bytes) {
    using Bytes = Kokkos::View<unsigned char*, Kokkos::LayoutRight, MemorySpace,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    Kokkos::deep_copy(Bytes(reinterpret_cast<unsigned char*>(data), bytes), static_cast<unsigned char>(0xFF));
  }

  static constexpr std::size_t region_span = std::size_t{1} << 44;

  ArenaOptions options_;
  std::byte* region_begin_ = nullptr;      // regions only
  std::shared_ptr<Storage> region_block_;  // memory at its beginning
  bool region_measures_ = false;
  std::size_t region_bytes_ = 0;
  mutable std::mutex mutex_;
  ArenaStats stats_;
  std::vector<Slab> slabs_;
  FreeRanges free_;
  std::map<std::byte*, ArenaBlock> live_;
  std::vector<ArenaBlock> peak_;
  bool peak_is_stale_ = true;
};

Storage::Storage(std::shared_ptr<ArenaState> state, std::byte* data, std::size_t bytes, std::string name)
    : state_(std::move(state)), data_(data), bytes_(bytes), name_(std::move(name)) {}

Storage::~Storage() {
  state_->release(data_);
}

Arena::Arena(ArenaOptions options) : state_(std::make_shared<ArenaState>(options)) {}

std::shared_ptr<Storage> Arena::allocate(std::string_view name, std::size_t bytes) {
  if (region_ == nullptr) return state_->allocate(name, bytes);
  auto placed = region_->allocate(name, bytes);
  if (bytes == 0 || !region_->is_imagined(placed->data(), bytes)) return placed;
  auto storage = state_->allocate(name, bytes);
  storage->shadow_ = std::move(placed);
  return storage;
}
ArenaStats Arena::stats() const {
  return state_->stats();
}
void Arena::reset_peak() {
  state_->reset_peak();
}
std::vector<ArenaBlock> Arena::live_blocks() const {
  return state_->blocks(false);
}
std::vector<ArenaBlock> Arena::peak_blocks() const {
  return state_->blocks(true);
}
std::size_t Arena::trim() {
  return state_->trim();
}

ArenaRegion::ArenaRegion(Arena& arena, std::shared_ptr<Storage> spare) : arena_(arena) {
  // Without memory any address that is aligned will do: nothing is stored there.
  std::byte* const begin =
      spare != nullptr ? spare->data() : reinterpret_cast<std::byte*>(std::uintptr_t{1} << 32);
  state_ = std::make_shared<ArenaState>(begin, std::move(spare), true, arena.state_->options());
}

ArenaRegion::Entered::Entered(ArenaRegion& region) : arena_(region.arena_) {
  DELTAPORT_VALIDATE(arena_.region_ == nullptr, Error, "an arena region was entered inside another");
  arena_.region_ = region.state_;
}
ArenaRegion::Entered::~Entered() {
  arena_.region_ = nullptr;
}

void ArenaRegion::place(std::shared_ptr<Storage> memory) {
  DELTAPORT_VALIDATE(!placed() && arena_.region_ != state_, Error,
                     "an arena region is placed once, from outside");
  DELTAPORT_VALIDATE(memory != nullptr && memory->bytes() >= bytes(), Error, "an arena region of ", bytes(),
                     " bytes does not fit into a block of ", memory == nullptr ? 0 : memory->bytes());
  memory_ = std::move(memory);
  state_ = std::make_shared<ArenaState>(memory_->data(), memory_, false, arena_.state_->options());
}

std::size_t ArenaRegion::bytes() const {
  return state_->region_bytes();
}

bool ArenaRegion::owns(const std::shared_ptr<Storage>& storage) const {
  if (storage == nullptr) return false;
  return storage->state_ == state_ || (storage->shadow_ != nullptr && storage->shadow_->state_ == state_);
}

}  // namespace deltaport
