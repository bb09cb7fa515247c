// SPDX-License-Identifier: Apache-2.0
#include "model/cudnn/attention.hpp"

#include <bit>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "deltaport/core/parallel.hpp"
#include "model/attention_core.hpp"
#include "model/cudnn/attention_graph.hpp"

namespace deltaport::cudnn {
namespace {

constexpr const char* label_forward = "deltaport: attention forward";
constexpr const char* label_backward = "deltaport: attention backward";

struct DocumentStarts {
  std::int64_t row;
  const std::int32_t* positions;
  std::int32_t* start;
  KOKKOS_FUNCTION void operator()(std::int64_t t) const {
    start[t] = static_cast<std::int32_t>(t % row) - positions[t];
  }
};

class PlannedAttention final : public Attention {
 public:
  explicit PlannedAttention(Runtime& runtime) : runtime_(runtime) {
    check(cudnnCreate(&handle_), "create a handle");
    check(cudnnSetStream(handle_, runtime.compute().cuda_stream()), "set the stream");
  }
  ~PlannedAttention() override { cudnnDestroy(handle_); }
  PlannedAttention(const PlannedAttention&) = delete;
  PlannedAttention& operator=(const PlannedAttention&) = delete;

  bool takes(Direction direction, const AttentionShape& shape, const Sequences& sequences) override {
    if (shape.tokens < 2 || shape.head_dim % 8 != 0 || shape.head_dim > 256 || shape.value_stride % 8 != 0)
      return false;
    return plan(direction, problem(shape, sequences)).plan.defined();
  }

  void forward(const AttentionShape& shape, const Sequences& sequences, const bfloat16* q, const bfloat16* k,
               const bfloat16* v, bfloat16* o, float* logsumexp) override {
    const AttentionProblem sizes = problem(shape, sequences);
    const AttentionPlan& planned = plan(Direction::forward, sizes);
    Call call(*this, planned, sizes, shape, sequences);
    call.bind(planned.ids.q, q);
    call.bind(planned.ids.k, k);
    call.bind(planned.ids.v, v);
    call.bind(planned.ids.o, o);
    call.bind(planned.ids.logsumexp, logsumexp);
    call.run(label_forward);
  }

  void backward(const AttentionShape& shape, const Sequences& sequences, const bfloat16* q, const bfloat16* k,
                const bfloat16* v, const bfloat16* o, const float* logsumexp, const bfloat16* d_o,
                bfloat16* dq, bfloat16* dk, bfloat16* dv) override {
    const AttentionProblem sizes = problem(shape, sequences);
    const AttentionPlan& planned = plan(Direction::backward, sizes);
    const auto delta = runtime_.allocate<float>("attention delta", Shape{shape.heads, shape.tokens});
    Call call(*this, planned, sizes, shape, sequences);
    call.bind(planned.ids.q, q);
    call.bind(planned.ids.k, k);
    call.bind(planned.ids.v, v);
    call.bind(planned.ids.o, o);
    call.bind(planned.ids.logsumexp, logsumexp);
    call.bind(planned.ids.d_o, d_o);
    call.bind(planned.ids.dq, dq);
    call.bind(planned.ids.dk, dk);
    call.bind(planned.ids.dv, dv);
    call.bind(planned.ids.delta, delta.data());
    call.run(label_backward);
  }

 private:
  static AttentionProblem problem(const AttentionShape& shape, const Sequences& sequences) {
    AttentionProblem p;
    p.tokens = shape.tokens;
    if (sequences.row_tokens > 0 && shape.tokens % sequences.row_tokens == 0) p.tokens = sequences.row_tokens;
    p.batch = shape.tokens / p.tokens;
    p.heads = shape.heads;
    p.kv_heads = shape.kv_heads;
    p.head_dim = shape.head_dim;
    p.value_stride = shape.value_stride;
    // Captures see the number of sequences filled up to a power of two; other arms take the same kernels.
    p.packed =
        std::bit_ceil(static_cast<std::uint64_t>(sequences.count())) > static_cast<std::uint64_t>(p.batch);
    return p;
  }

  const AttentionPlan& plan(Direction direction, const AttentionProblem& p) {
    const Key key{direction, p};
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    require_not_recording(direction == Direction::forward ? label_forward : label_backward,
                          "cuDNN makes its plan the first time that sizes are seen");
    return plans_
        .emplace(key, direction == Direction::forward ? plan_attention_forward(handle_, p, workspace_limit)
                                                      : plan_attention_backward(handle_, p, workspace_limit))
        .first->second;
  }

  /// What every execution binds, and the memory that it needs until it is enqueued.
  class Call {
   public:
    Call(PlannedAttention& owner, const AttentionPlan& planned, const AttentionProblem& sizes,
         const AttentionShape& shape, const Sequences& sequences)
        : owner_(owner), planned_(planned), scale_(static_cast<float>(shape.scale)) {
      DELTAPORT_VALIDATE(planned.plan.defined(), Error, "cuDNN has no engine for attention of ", shape.tokens,
                         " tokens with head_dim ", shape.head_dim);
      Runtime& runtime = owner.runtime_;
      if (planned.ids.document_start != Graph::none) {
        starts_ = runtime.allocate<std::int32_t>("attention document starts", Shape{shape.tokens});
        for_each_index(runtime.compute(), "deltaport: attention document starts", shape.tokens,
                       DocumentStarts{sizes.tokens, sequences.positions.data(), starts_.data()});
        bind(planned.ids.document_start, starts_.data());
      }
      if (planned.plan.workspace_bytes() > 0)
        workspace_ =
            runtime.allocate<std::uint8_t>("attention workspace", Shape{planned.plan.workspace_bytes()});
    }
    void bind(Graph::Id id, const void* pointer) { bindings_.bind(id, pointer); }
    void run(const char* label) {
      // Read when the plan is executed, which is now also while a stream is captured.
      static constexpr float one = 1.0f, minus_infinity = -std::numeric_limits<float>::infinity();
      bind(planned_.ids.scale, &scale_);
      bind(planned_.ids.minus_infinity, &minus_infinity);
      if (planned_.ids.one != Graph::none) bind(planned_.ids.one, &one);
      enqueue(label, [&] { planned_.plan.execute(owner_.handle_, bindings_, workspace_.data()); });
    }

   private:
    PlannedAttention& owner_;
    const AttentionPlan& planned_;
    float scale_;
    Tensor<std::int32_t> starts_;
    Tensor<std::uint8_t> workspace_;
    Bindings bindings_;
  };

  using Key = std::pair<Direction, AttentionProblem>;
  Runtime& runtime_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Key, AttentionPlan> plans_;
};

}  // namespace

bool available() {
  return cudnnGetVersion() >= 90000;
}
std::string_view limits() {
  return "T = bfloat16, head_dim a multiple of 8 of at most 256, at least 2 tokens, and a workspace of at "
         "most 4 GiB";
}

std::shared_ptr<Attention> Attention::of(Runtime& runtime) {
  static std::mutex mutex;
  static std::map<const Runtime*, std::weak_ptr<Attention>> all;
  if (!available()) return nullptr;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Attention> result = all[&runtime].lock();
  if (!result) {
    result = std::make_shared<PlannedAttention>(runtime);
    all[&runtime] = result;
  }
  return result;
}

}  // namespace deltaport::cudnn
