// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "deltaport/core/context.hpp"

namespace deltaport {
struct AttentionShape;
}

namespace deltaport::cudnn {

/// True where this build has cuDNN.
bool available();
/// What cudnn::Attention does, for error texts.
std::string_view limits();

/// Most bytes of workspace that one call may take.
inline constexpr std::int64_t workspace_limit = std::int64_t{4} << 30;

enum class Direction { forward, backward };

/// The core of causal attention by cuDNN's fused engines, with the same bits from run to run. Everything is enqueued on
/// the runtime's compute stream, and may be captured; workspaces come from its arena. A plan is made the first time
/// that sizes are seen: 0.05 s, or about 1 s where cuDNN compiles the engine first, once in a process for each kind
/// (head_dim, grouping, packing, direction). In between nothing is allocated outside of the arena.
class Attention {
 public:
  virtual ~Attention() = default;
  /// The one of this runtime, alive as long as somebody holds it; nullptr where the build has no cuDNN. Throws
  /// DeviceError when cuDNN cannot be initialised.
  static std::shared_ptr<Attention> of(Runtime& runtime);

  /// Whether there is an engine for these sizes that gives the same bits each time and needs at most 4 GiB of workspace.
  /// Makes the plan; throws CaptureError while the thread records and there is none yet.
  virtual bool takes(Direction direction, const AttentionShape& shape, const Sequences& sequences) = 0;

  /// As attention_forward(). Throws Error unless takes().
  virtual void forward(const AttentionShape& shape, const Sequences& sequences, const bfloat16* q,
                       const bfloat16* k, const bfloat16* v, bfloat16* o, float* logsumexp) = 0;
  /// Gradients of q, k and v, rounded once (those of k and v after each query head).
  virtual void backward(const AttentionShape& shape, const Sequences& sequences, const bfloat16* q,
                        const bfloat16* k, const bfloat16* v, const bfloat16* o, const float* logsumexp,
                        const bfloat16* d_o, bfloat16* dq, bfloat16* dk, bfloat16* dv) = 0;
};

}  // namespace deltaport::cudnn
