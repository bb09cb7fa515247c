// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deltaport {

class ArenaState;
class ArenaRegion;

/// One live block of an Arena. Tensors that share memory share their Storage; the block returns to the arena
/// when the last of them is gone. Identity of a Storage is identity of ownership.
class Storage {
 public:
  Storage(std::shared_ptr<ArenaState> state, std::byte* data, std::size_t bytes, std::string name);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

 private:
  friend class Arena;
  friend class ArenaRegion;
  std::shared_ptr<ArenaState> state_;
  std::shared_ptr<Storage> shadow_;  // its place in a region that is being measured
  std::byte* data_;
  std::size_t bytes_;
  std::string name_;
};

/// All figures in bytes. Live bytes count blocks as rounded up to 256 bytes.
struct ArenaStats {
  std::size_t allocated = 0;       ///< live now
  std::size_t allocated_peak = 0;  ///< most that was ever live since the last reset_peak()
  std::size_t reserved = 0;        ///< held from the driver in slabs
  std::size_t reserved_peak = 0;
  std::size_t blocks = 0;         ///< live blocks
  std::size_t slab_requests = 0;  ///< driver allocations so far
};

struct ArenaBlock {
  std::string name;
  std::size_t bytes;
};

struct ArenaOptions {
  std::size_t slab_bytes = std::size_t{64}
                           << 20;  ///< size of one driver allocation; larger requests get their own
  /// Fill every new block with 0xFF bytes (NaN for every float type) so that reads of unwritten memory show; in captured
  /// work on hosts at every replay, on devices not at all.
  bool poison = false;
};

/// Deterministic best-fit sub-allocator over large slabs in the execution space's memory. Blocks are 256-byte
/// aligned and named; the same sequence of requests and releases gives the same addresses. Requests are
/// host-side bookkeeping: memory is handed out in stream order of the one compute stream, so a block may be
/// reused as soon as it is released. Thread-safe. Slabs return to the driver when the arena and all of its
/// storages are gone, or by trim().
class Arena {
 public:
  explicit Arena(ArenaOptions options = {});

  /// A block of at least `bytes` bytes (zero bytes give a null block). Throws OutOfMemory, naming the block,
  /// the request and the largest live blocks.
  std::shared_ptr<Storage> allocate(std::string_view name, std::size_t bytes);

  ArenaStats stats() const;
  void reset_peak();

  /// Live blocks, largest first.
  std::vector<ArenaBlock> live_blocks() const;
  /// Blocks that were alive when the allocated peak was reached, largest first.
  std::vector<ArenaBlock> peak_blocks() const;

  /// Gives slabs without live blocks back to the driver; returns the bytes given back.
  std::size_t trim();

 private:
  friend class ArenaRegion;
  std::shared_ptr<ArenaState> state_;
  std::shared_ptr<ArenaState> region_;  // where requests go, or are mirrored, at present
};

/// Memory of its own for a sequence of requests that will be made again and must get the same addresses, while other
/// requests come in between: what captured graphs use. First the sequence is measured: while entered, every block of
/// the arena also takes a place in an imagined region. After place(), the same requests get their places in a block of
/// memory that is at least as large. Blocks that are released stay usable memory, for replays use them. A region and
/// the storages taken from it keep the memory alive; several regions may share it, if what they hold is never needed
/// at the same time.
class ArenaRegion {
 public:
  /// While it is measured, blocks whose places lie in `spare` are there, so that an arena that keeps this memory for
  /// other regions does not need as much again; nothing else may use it then. nullptr: all blocks are the arena's own.
  explicit ArenaRegion(Arena& arena, std::shared_ptr<Storage> spare = nullptr);

  /// Sends the arena's requests here, until the result is gone. Regions do not nest (throws Error).
  class Entered {
   public:
    explicit Entered(ArenaRegion& region);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    Arena& arena_;
  };

  /// Ends measuring: from here on blocks come from `memory`, a block of the same arena with at least bytes() bytes
  /// (throws Error). A request that does not fit throws CaptureError.
  void place(std::shared_ptr<Storage> memory);
  bool placed() const { return memory_ != nullptr; }
  /// Bytes that the requests needed; counted anew after place().
  std::size_t bytes() const;
  /// Whether the storage is a block of this region.
  bool owns(const std::shared_ptr<Storage>& storage) const;
  /// What place() was given: keeps memory alive for tensors in it without being one of the region's blocks.
  const std::shared_ptr<Storage>& memory() const { return memory_; }

 private:
  Arena& arena_;
  std::shared_ptr<ArenaState> state_;
  std::shared_ptr<Storage> memory_;
};

}  // namespace deltaport
