// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>
#include <functional>
#include <utility>

namespace deltaport {

/// True when kernels run on the host: one thread per team, plain loops inside.
inline constexpr bool runs_on_host =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, Kokkos::DefaultExecutionSpace::memory_space>::accessible;

/// Receives the operations of a stretch of work that is being captured, in the order in which they are enqueued.
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// An operation, before it is enqueued. `operation` is its label.
  virtual void begin(const char* operation) = 0;
  /// Hosts only: keeps the work of the operation, to be run at every replay.
  virtual void keep(std::function<void()> work) = 0;
};

/// The recorder of the calling thread; nullptr outside of captures.
Recorder* recorder();
inline bool is_recording() {
  return recorder() != nullptr;
}

/// Makes `recorder` the calling thread's recorder while alive. Recordings do not nest (throws CaptureError).
class RecordingScope {
 public:
  explicit RecordingScope(Recorder& recorder);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;
};

/// Throws CaptureError, naming the operation, while the calling thread records: for whatever waits for the stream,
/// reads its results on the host, or takes a host's value that changes from one replay to the next. `why` ends the
/// sentence "... cannot be captured: ".
void require_not_recording(const char* operation, const char* why);

/// False inside stretches of work whose sizes must serve every replay: what tensors hold then (sequence boundaries,
/// say) differs from one replay to the next, and the host takes bounds that follow from shapes alone.
bool host_may_read_inputs();

/// Makes host_may_read_inputs() false for the calling thread while alive.
class InputsHidden {
 public:
  InputsHidden();
  ~InputsHidden();
  InputsHidden(const InputsHidden&) = delete;
  InputsHidden& operator=(const InputsHidden&) = delete;
};

/// The one way by which operators put work on the compute stream. Runs `work()` at once. While the thread records,
/// work on hosts is kept instead and runs at each replay, not now; on devices it is enqueued as ever, for the stream
/// itself is being captured. `work` is copied: it must own what it uses, except for memory that lives as long as the
/// capture (blocks of the capture's region, parameters). Work for another stream or thread, such as a transfer that
/// is handed to a queue, or the wait for one, goes through here as well; on devices, streams that are forked off by
/// events must be joined before the captured stretch ends.
template <class Work>
void enqueue(const char* operation, const Work& work) {
  Recorder* const current = recorder();
  if (current == nullptr) return work();
  current->begin(operation);
  if constexpr (runs_on_host)
    current->keep(work);
  else
    work();
}

/// Enqueues a kernel.
template <class Policy, class Functor>
void enqueue_kernel(const char* label, const Policy& policy, const Functor& functor) {
  enqueue(label, [=] { Kokkos::parallel_for(label, policy, functor); });
}

}  // namespace deltaport
