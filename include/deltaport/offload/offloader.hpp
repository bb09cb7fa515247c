// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deltaport/core/saved_mover.hpp"
#include "deltaport/offload/pinned_pool.hpp"
#include "deltaport/offload/schedule.hpp"
#include "deltaport/offload/transfer_queue.hpp"

namespace deltaport::offload {

/// When transfers are enqueued: at the commit and at the take of each group, or all those of a layer's groups at flush()
/// and prepare(), which come between layers. The latter leave the layers free of transfers, so that each may be captured
/// as a graph; a layer's groups take their slots together.
enum class Start { at_group, between_layers };

struct OffloaderOptions {
  std::vector<std::string> scopes;  ///< names of the groups that may move; not empty
  ScheduleRules rules;
  /// Memory moves when a tensor in it has at least as many elements.
  std::int64_t min_tensor_elements = std::int64_t{1} << 20;
  /// Copies to the host under way at one time, 1 to `rules.slots`; 0: as many as slots.
  std::int64_t max_inflight = 0;
  Start start = Start::at_group;
};

/// Since the last take_stats(), but where it says otherwise. In bytes.
struct OffloadStats {
  std::int64_t freed = 0;        ///< device memory that was given back to the arena during forward
  std::int64_t useless = 0;      ///< copied to the host although somebody else kept the memory
  std::int64_t groups = 0;       ///< count of groups that were copied to the host
  std::int64_t host_in_use = 0;  ///< now: host memory whose contents backward still needs
  std::int64_t host_reserved =
      0;  ///< now: host memory kept for the groups of the plan; replays may keep more
  TransferStats transfers;
};

/// Moves what forward saved to pinned host memory, and brings it back in backward.
///
/// At its commit, a group that moves (see Schedule) is copied to the host, after the work enqueued so far. Its device
/// memory goes back to the arena `slots` groups later, once the compute stream waits for the copy: in host order, so
/// that the same pass gets the same addresses. When backward takes a group, the groups saved before it are fetched into
/// new arena blocks, max(1, slots - 1) of them, and the compute stream waits for the group itself. Every group of the
/// plan has host memory of its own, at the same address in each pass; nothing is allocated on the host after the
/// warm-up.
///
/// Where a pass is captured (begin_capture()), its host memory belongs to its replays as well, whatever the plan becomes.
/// A replay may use the same host memory as other passes, as every transfer of a pass is waited for by the compute stream
/// before the pass ends. Transfers in a graph of a whole pass have no times: their seconds count as zero.
///
/// Memory is moved by owner: tensors that share a block move together and once, only the bytes between the first and the
/// last of them. A block that somebody beside the group still owns when its memory should go is left where it is, and is
/// not copied in later passes (notes() says so). One thread.
class Offloader : public SavedMover {
 public:
  /// All three must outlive this. Throws ConfigError for wrong options.
  Offloader(Arena& arena, PinnedPool& pool, std::unique_ptr<TransferQueue> queue, OffloaderOptions options);
  /// Waits for the copies under way, then gives the host memory back to the pool.
  ~Offloader() override;

  /// Throws OutOfMemory when the plan needs more host memory than the pool has, Error when groups are committed after
  /// backward has begun.
  void committed(const SavedGroup& group) override;
  void before_take(const SavedGroup& group) override;
  void flush() override;
  void prepare() override;
  void dropped() override;
  std::uint64_t plan() const override { return plan_version_; }
  /// Waits for all copies. Throws CaptureError for stretches unless transfers start between layers.
  void begin_capture(Captured captured) override;
  std::unique_ptr<MovedPass> end_capture() override;
  std::unique_ptr<State> state(const std::function<AnyTensor(const AnyTensor&)>& of) const override;
  void restore(const State& state) override;

  /// Once the step's results have reached the host: waits for copies.
  OffloadStats take_stats();
  /// What the user should know, since the last call.
  std::vector<std::string> take_notes();
  const Schedule& schedule() const { return pass_.schedule; }

 private:
  /// One block of device memory of a group.
  struct Block {
    std::shared_ptr<Storage> storage;  // null while it is on the host only
    std::byte* data = nullptr;         // where the block begins on the device
    std::string name;
    std::size_t begin = 0, bytes = 0;  // the part that the group's tensors cover
    struct Place {
      std::size_t tensor, offset;  // index in the group; bytes from the start of the block
    };
    std::vector<Place> tensors;
    std::int64_t largest = 0;     // elements of the largest tensor
    std::size_t index = 0;        // in the group's shape
    bool borrowed = false;        // `storage` is but the memory around it: it owns nothing
    std::size_t host_offset = 0;  // in the group's host memory
  };
  enum class Where { here, leaving, away, arriving };
  struct Group {
    std::string scope;
    std::optional<std::size_t> position;  // in the schedule; none when nothing in it may move
    std::vector<Block> blocks;            // those that move
    Where where = Where::here;
    std::size_t layer = 0;  // flushes before it in this pass
    EventPtr copied, fetched;
  };
  /// Host memory of one position of the schedule, and of the replays that use it.
  class HostMemory {
   public:
    /// Throws OutOfMemory.
    HostMemory(PinnedPool& pool, TransferQueue& queue, std::string_view name, std::size_t bytes);
    ~HostMemory();
    HostMemory(const HostMemory&) = delete;
    HostMemory& operator=(const HostMemory&) = delete;

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    EventPtr written, read;  ///< the last copy to it and from it

   private:
    PinnedPool& pool_;
    TransferQueue& queue_;
    std::byte* data_;
    std::size_t bytes_;
  };
  /// What a pass changes.
  struct Pass : State {
    std::vector<Group> groups;             // of this pass, not taken yet
    std::vector<std::size_t> at_position;  // index in groups
    std::deque<std::size_t> leaving;       // positions, oldest first
    std::deque<std::size_t> unsent;        // positions, of leaving ones
    std::size_t layer = 0;
    bool backward = false;
    Schedule schedule;
    OffloadStats stats;

    explicit Pass(const ScheduleRules& rules) : schedule(rules) {}
  };
  class Replay;

  bool in_scope(std::string_view name) const;
  std::vector<Block> movable_blocks(const SavedGroup& group) const;
  Group& at(std::size_t position) { return pass_.groups[pass_.at_position[position]]; }
  bool take_host_memory(std::size_t position, std::vector<Block>& blocks);
  void send_unsent();
  void send(Group& group);
  void retire_what_is_due();
  void retire_oldest();
  void fetch(Group& group);
  void await(Group& group);
  void put_back(const Group& group, const SavedGroup& saved) const;
  void prepare_layer();
  void end_forward();
  void end_pass();
  void check_plan() const;
  void lay_out_plan();
  void settle() noexcept;
  void log_transfers(const std::function<void()>& enqueue);
  std::int64_t copied_bytes(const Group& group) const;

  Arena& arena_;
  PinnedPool& pool_;
  std::unique_ptr<TransferQueue> queue_;
  OffloaderOptions options_;
  Pass pass_;
  std::vector<std::shared_ptr<HostMemory>> host_;  // by position
  std::unique_ptr<Replay> capture_;                // while a pass is captured
  std::uint64_t plan_version_ = 1;
  bool plan_is_new_ = false;
  std::vector<std::string> notes_;
};

}  // namespace deltaport::offload
