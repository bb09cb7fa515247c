// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "deltaport/data/sample_source.hpp"
#include "deltaport/data/step_plan.hpp"

namespace deltaport {

/// Reads the micro-batches of one rank ahead of their use, in one thread, in the order step by step,
/// micro-batch by micro-batch. It only moves the time of reading: what next() returns is micro_batches_of()
/// applied to the source.
class BatchLoader {
 public:
  /// `source` must outlive the loader. At most `depth` batches wait. Throws ConfigError for a plan that does
  /// not divide.
  BatchLoader(const SampleSource& source, const StepPlan& plan, int rank, std::int64_t first_step,
              int depth = 2);
  /// Stops the thread; batches not taken are dropped.
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// The next micro-batch; waits for it. Rethrows what reading it threw, at every further call too.
  Batch next();

 private:
  void read_ahead(std::int64_t first_step);
  bool push(Batch batch);

  const SampleSource& source_;
  const StepPlan plan_;
  const int rank_;
  const std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deltaport
