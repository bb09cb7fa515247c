// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "deltaport/offload/offloader.hpp"

namespace deltaport::offload {

/// The transfers of one captured pass.
class Offloader::Replay : public MovedPass {
 public:
  Replay(Offloader& owner, SavedMover::Captured captured);

  void between(std::size_t n) override;
  void replayed() override;

  bool whole() const { return captured_ == SavedMover::Captured::whole; }
  /// The next log, to be filled.
  TransferLog& add_log() { return logs_.emplace_back(); }
  /// The pass is over.
  void finish();

 private:
  Offloader& owner_;
  SavedMover::Captured captured_;
  std::deque<TransferLog> logs_;
  std::vector<std::shared_ptr<HostMemory>> host_;
  // At the beginning of the pass, then what the pass itself counted.
  std::int64_t freed_, groups_;
  TransferBytes bytes_;
};

}  // namespace deltaport::offload
