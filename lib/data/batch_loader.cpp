// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/batch_loader.hpp"

#include <utility>

#include "deltaport/core/error.hpp"

namespace deltaport {

BatchLoader::BatchLoader(const SampleSource& source, const StepPlan& plan, int rank, std::int64_t first_step,
                         int depth)
    : source_(source), plan_(plan), rank_(rank), depth_(static_cast<std::size_t>(depth)) {
  DELTAPORT_VALIDATE(depth >= 1, ConfigError, "a loader needs room for at least one batch, got ", depth);
  micro_batches_of(plan, rank, first_step);  // throws here rather than in the thread
  thread_ = std::thread([this, first_step] { read_ahead(first_step); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchLoader::read_ahead(std::int64_t first_step) {
  try {
    for (std::int64_t step = first_step;; ++step)
      for (const MicroBatch& m : micro_batches_of(plan_, rank_, step))
        if (!push(source_.batch(m.first, m.count))) return;
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  changed_.notify_all();
}

bool BatchLoader::push(Batch batch) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || ready_.size() < depth_; });
  if (stopping_) return false;
  ready_.push_back(std::move(batch));
  lock.unlock();
  changed_.notify_all();
  return true;
}

Batch BatchLoader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || failure_ != nullptr; });
  if (ready_.empty()) std::rethrow_exception(failure_);
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return batch;
}

}  // namespace deltaport
