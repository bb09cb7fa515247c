// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deltaport/core/context.hpp"
#include "deltaport/offload/pinned_pool.hpp"
#include "deltaport/offload/schedule.hpp"
#include "deltaport/offload/transfer_queue.hpp"

namespace deltaport::offload {

/// When transfers are enqueued: at the commit and at the take of each group, or all those of a layer's groups at flush()
/// and prepare(), which come between layers. The latter can be recorded apart from the layers, which may then be captured
/// as graphs; a layer's groups take their slots together.
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
  std::int64_t freed = 0;          ///< device memory that was given back to the arena during forward
  std::int64_t useless = 0;        ///< copied to the host although somebody else kept the memory
  std::int64_t groups = 0;         ///< count of groups that were copied to the host
  std::int64_t host_in_use = 0;    ///< now: host memory whose contents backward still needs
  std::int64_t host_reserved = 0;  ///< now: host memory kept for the groups of the plan
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

  /// Once the step's results have reached the host: waits for copies.
  OffloadStats take_stats();
  /// What the user should know, since the last call.
  std::vector<std::string> take_notes();
  const Schedule& schedule() const { return schedule_; }
  /// Waits for all copies; the next pass depends on no event from before. To be called before a graph is captured.
  void settle() noexcept;
  /// Logs the transfers until the next call; see TransferQueue::record().
  void record(TransferLog* log) { queue_->record(log); }

 private:
  /// One block of device memory of a group.
  struct Block {
    std::shared_ptr<Storage> storage;  // null while it is on the host only
    std::string name;
    std::size_t begin = 0, bytes = 0;  // the part that the group's tensors cover
    struct Place {
      std::size_t tensor, offset;  // index in the group; bytes from the start of the block
    };
    std::vector<Place> tensors;
    std::int64_t largest = 0;     // elements of the largest tensor
    std::size_t index = 0;        // in the group's shape
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
  /// Host memory of one position of the schedule.
  struct HostMemory {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    EventPtr written, read;  // the last copy to it and from it
  };

  bool in_scope(std::string_view name) const;
  std::vector<Block> movable_blocks(const SavedGroup& group) const;
  Group& at(std::size_t position) { return groups_[at_position_[position]]; }
  bool take_host_memory(std::size_t position, std::vector<Block>& blocks);
  void send_unsent();
  void send(Group& group);
  void retire_what_is_due();
  void retire_oldest();
  void fetch(Group& group);
  void await(Group& group);
  void put_back(const Group& group, const SavedGroup& saved) const;
  void end_forward();
  void end_pass();
  void check_plan() const;
  void release_host_memory(HostMemory& memory);
  std::int64_t copied_bytes(const Group& group) const;

  Arena& arena_;
  PinnedPool& pool_;
  std::unique_ptr<TransferQueue> queue_;
  OffloaderOptions options_;
  Schedule schedule_;
  std::vector<Group> groups_;             // of this pass, not taken yet
  std::vector<std::size_t> at_position_;  // index in groups_
  std::deque<std::size_t> leaving_;       // positions, oldest first
  std::deque<std::size_t> unsent_;        // positions, of leaving ones
  std::vector<HostMemory> host_;          // by position
  std::size_t layer_ = 0;
  bool backward_ = false;
  bool plan_is_new_ = false;
  OffloadStats stats_;
  std::vector<std::string> notes_;
};

}  // namespace deltaport::offload
