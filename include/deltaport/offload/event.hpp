// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace deltaport::offload {

/// A point in the work of some queue: a stream's event on a device, a flag on hosts. Both calls may come from any
/// thread, also several at once, and must not call the pool that was given the event.
class Event {
 public:
  Event() = default;
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Whether the point has been passed; once true it stays so. Never blocks.
  virtual bool query() const = 0;
  /// Returns when the point has been passed.
  virtual void wait() const = 0;
};

}  // namespace deltaport::offload
