// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deltaport {

/// First record of a metrics file: what the numbers belong to.
struct RunMetrics {
  std::string name;
  std::string version;
  std::int64_t parameters = 0;
  std::int64_t ranks = 1;
  std::int64_t steps = 0;      ///< planned
  double bytes_per_token = 0;  ///< 1 for the byte tokenizer; 0 when not known: then no bits per byte
  std::string precision = {};  ///< "float32" or "bfloat16"; empty in files that do not say
};

/// One optimizer step, figures of the whole job.
struct StepMetrics {
  std::int64_t step = 0;  ///< steps completed: the first is 1
  double loss = 0.0;      ///< nats per valid token
  double grad_norm = 0.0;
  double lr = 0.0;
  std::int64_t tokens = 0;                  ///< input tokens of the step
  std::int64_t valid_tokens = 0;            ///< those with a label
  std::int64_t tokens_total = 0;            ///< input tokens since the start of training
  double seconds = 0.0;                     ///< wall time of the step
  std::int64_t memory_allocated_bytes = 0;  ///< arena peaks of the fullest rank
  std::int64_t memory_reserved_bytes = 0;

  double tokens_per_second() const { return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0; }
};

/// One evaluation on the validation data, after `step` steps.
struct EvalMetrics {
  std::int64_t step = 0;
  double loss = 0.0;
  std::int64_t valid_tokens = 0;
  double seconds = 0.0;
};

/// A checkpoint was written after `step` steps.
struct CheckpointMetrics {
  std::int64_t step = 0;
};

/// Graphs were captured in step `step`. Figures are those of rank 0 and of all its graphs so far.
struct GraphMetrics {
  std::int64_t step = 0;
  std::int64_t graphs = 0;      ///< captured segments
  std::int64_t operations = 0;  ///< in all of them
  std::int64_t bytes = 0;       ///< memory that they hold
  double capture_seconds = 0;   ///< of this step, and not counted in StepMetrics::seconds
};

/// What users should know of step `step`; begins with the ranks that say it ("rank 1: ") unless all do.
struct WarningMetrics {
  std::int64_t step = 0;
  std::string text;
};

/// What offload did in one step. Bytes and groups are sums over the ranks, the rest is that of the rank where it is most.
struct OffloadMetrics {
  std::int64_t step = 0;
  std::int64_t to_host_bytes = 0;
  std::int64_t to_device_bytes = 0;
  std::int64_t freed_bytes = 0;    ///< device memory given back during forward
  std::int64_t useless_bytes = 0;  ///< of to_host_bytes, copied although somebody else kept the memory
  std::int64_t groups = 0;         ///< copied to the host
  double to_host_seconds = 0.0;    ///< spent copying
  double to_device_seconds = 0.0;
  double stall_seconds = 0.0;          ///< computing waited for copies
  double to_host_stall_seconds = 0.0;  ///< of these, to the host, whose memory was to be given back
  double step_seconds = 0.0;
  std::int64_t peak_allocated_bytes = 0;  ///< of the arena
  std::int64_t peak_reserved_bytes = 0;
  std::int64_t pinned_bytes = 0;       ///< host memory retained
  std::int64_t driver_used_bytes = 0;  ///< 0 on hosts
  std::string peak_blocks;             ///< what was alive at rank 0's allocated peak, largest first
  std::int64_t least_rank_bytes =
      0;  ///< moved by the rank, and in the direction, that moved least; in no record

  /// Share of the copies' time that computing did not wait for.
  double overlap() const;
};

/// Bits per byte of a loss in nats per token; NaN when bytes_per_token is not known.
double bits_per_byte(double loss, double bytes_per_token);

/// Appends one JSON object per line, at once. Keys and their order are fixed. Floats are the shortest text that
/// reads back to the same value; values that are not finite are null, and "loss_hex" keeps the loss to the last
/// bit. A record that cannot be written (a full disk) is left out as a whole: write() throws DataError, and may be
/// called again with later records, once there is room. For one rank of the job.
class MetricsWriter {
 public:
  /// Without `resume_step` starts the file anew with `run` as its first record. With it, keeps what belongs
  /// to the first `resume_step` steps and cuts off the rest (and a torn last line), so that steps stay unique
  /// and ascending. Throws DataError when the file cannot be opened, or is damaged before its last line. A disk
  /// that is full already shows in the first write(); the first record then comes with a later one.
  MetricsWriter(const std::string& path, const RunMetrics& run, std::optional<std::int64_t> resume_step = {});
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Throws Error unless metrics.step is later than every step written.
  void write(const StepMetrics& metrics);
  /// A second evaluation after the same step is left out.
  void write(const EvalMetrics& metrics);
  void write(const CheckpointMetrics& metrics);
  void write(const GraphMetrics& metrics);
  void write(const OffloadMetrics& metrics);
  void write(const WarningMetrics& metrics);

 private:
  void put(const std::string& line);
  bool append(const std::string& text);
  std::string path_;
  int file_ = -1;
  std::int64_t size_ = 0;   // of the whole lines in the file
  std::string first_line_;  // until it is written
  std::int64_t last_step_ = 0;
  std::int64_t last_eval_ = -1;
};

struct MetricsHistory {
  RunMetrics run;
  std::vector<StepMetrics> steps;
  std::vector<EvalMetrics> evaluations;
  std::vector<CheckpointMetrics> checkpoints;
  std::vector<GraphMetrics> graphs;
  std::vector<OffloadMetrics> offload;
  std::vector<WarningMetrics> warnings;
};

/// Reads a metrics file; a torn last line is left out. Null becomes NaN. Throws DataError (file:line) when it
/// is missing or damaged elsewhere.
MetricsHistory read_metrics(const std::string& path);

}  // namespace deltaport
