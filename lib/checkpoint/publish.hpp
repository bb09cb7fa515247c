// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>

#include "checkpoint/folder.hpp"

namespace deltaport::checkpoint {

/// What goes into a new checkpoint.
struct Contents {
  Manifest manifest;                         ///< its list of files is filled in while writing; used on rank 0
  std::map<std::string, std::string> texts;  ///< small files by name, written by rank 0
  std::uint64_t shard_bytes = 0;             ///< of all ranks' shards, for the check of free space
  /// Writes this rank's shards into the folder; returns names and digests.
  std::function<std::map<std::string, FileDigest>(const Path& folder)> write_shards;
};

/// Writes and commits `dir`/step-N so that it is whole or not there, whatever happens on whatever rank:
///   1. rank 0 makes step-N.tmp; 2. every rank writes its shards (part file, flush, rename); 3. rank 0 writes
///   texts and manifest, flushes the folder, writes COMMIT, flushes again; 4. renames to step-N, flushes
///   `dir`; 5. replaces the file `latest`; 6. removes old checkpoints. Collective; errors as
///   save_training_state. Needs no Kokkos.
SavedCheckpoint publish(const Communicator& comm, const Path& dir, const Contents& contents,
                        const RetentionPolicy& retention);

}  // namespace deltaport::checkpoint
