// SPDX-License-Identifier: Apache-2.0
#include "model/cudnn/graph.hpp"

#include <algorithm>

#include "deltaport/core/error.hpp"

namespace deltaport::cudnn {
namespace {

constexpr Extents dense(const Extents& e) {
  return {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1};
}

template <class V>
std::vector<V> values(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                      cudnnBackendAttributeType_t type, std::int64_t most) {
  std::vector<V> result(static_cast<std::size_t>(most));
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(descriptor, name, type, most, &count, result.data()), "get attribute");
  result.resize(static_cast<std::size_t>(std::min(count, most)));
  return result;
}

/// Engine configurations for a graph, best first.
std::vector<Descriptor> configurations(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) return {};
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
        "count engines");
  std::vector<Descriptor> result;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    result.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(result.back().get());
  }
  if (count == 0) return {};
  check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()),
        "list engines");
  result.resize(static_cast<std::size_t>(count));
  return result;
}

bool same_bits_each_time(const Descriptor& configuration) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
        "get engine");
  const auto notes =
      values<cudnnBackendNumericalNote_t>(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                          CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  return std::find(notes.begin(), notes.end(), CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == notes.end();
}

}  // namespace

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size());
  DELTAPORT_VALIDATE(false, DeviceError, "cuDNN: ", what, ": ", cudnnGetErrorString(status), ": ",
                     detail.data());
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &handle_), "create descriptor");
}

void Descriptor::reset() {
  if (handle_ != nullptr) cudnnBackendDestroyDescriptor(handle_);
  handle_ = nullptr;
}

Graph::Id Graph::add(const Extents& extents, const Extents& strides, cudnnDataType_t type, bool is_virtual,
                     bool by_value) {
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const Id id = static_cast<Id>(tensors_.size()) + 1;
  const std::int64_t alignment = by_value ? 4 : 16;
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, extents.data(), 4);
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), 4);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
  if (is_virtual) tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual);
  if (by_value) tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &by_value);
  tensor.finalize();
  tensors_.push_back(std::move(tensor));
  return id;
}

Graph::Id Graph::tensor(const Extents& extents, const Extents& strides, cudnnDataType_t type) {
  return add(extents, strides, type, false, false);
}
Graph::Id Graph::intermediate(const Extents& extents, cudnnDataType_t type) {
  return add(extents, dense(extents), type, true, false);
}
Graph::Id Graph::intermediate(const Extents& extents, const Extents& strides, cudnnDataType_t type) {
  return add(extents, strides, type, true, false);
}
Graph::Id Graph::scalar(cudnnDataType_t type) {
  return add({1, 1, 1, 1}, {1, 1, 1, 1}, type, false, true);
}

Descriptor& Graph::operation(cudnnBackendDescriptorType_t type) {
  return operations_.emplace_back(type);
}

void Graph::matmul(Id a, Id b, Id c) {
  Descriptor& kind = parts_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &compute);
  kind.finalize();
  Descriptor& op = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  op.finalize();
}

void Graph::pointwise(cudnnPointwiseMode_t mode, Id x, Id y, const Operands& more, cudnnDataType_t compute) {
  Descriptor& kind = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &compute);
  kind.finalize();
  Descriptor& op = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x));
  if (more.b != none) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(more.b));
  if (more.t != none) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(more.t));
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  op.finalize();
}

void Graph::index(std::int64_t axis, Id x, Id y, cudnnDataType_t compute) {
  Descriptor& kind = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_GEN_INDEX;
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &compute);
  kind.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &axis);
  kind.finalize();
  Descriptor& op = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x));
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  op.finalize();
}

void Graph::reduce(cudnnReduceTensorOp_t reduction, Id x, Id y) {
  Descriptor& kind = parts_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &reduction);
  kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &compute);
  kind.finalize();
  Descriptor& op = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  op.finalize();
}

void Graph::reshape(Id x, Id y) {
  Descriptor& op = operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x));
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
  op.finalize();
}

Plan Graph::plan(cudnnHandle_t handle, std::int64_t workspace_limit) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& op : operations_) raw.push_back(op.get());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.data(),
            static_cast<std::int64_t>(raw.size()));
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
  if (graph.try_finalize() != CUDNN_STATUS_SUCCESS) return {};
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
    for (const Descriptor& configuration : configurations(graph, mode)) {
      if (!same_bits_each_time(configuration)) continue;
      Plan result;
      result.plan_ = Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      result.plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle);
      result.plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      if (result.plan_.try_finalize() != CUDNN_STATUS_SUCCESS) continue;
      result.workspace_ = values<std::int64_t>(result.plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                               CUDNN_TYPE_INT64, 1)
                              .at(0);
      if (result.workspace_ <= workspace_limit) return result;
    }
  return {};
}

void Plan::execute(cudnnHandle_t handle, const Bindings& bindings, void* workspace) const {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const auto count = static_cast<std::int64_t>(bindings.ids.size());
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, bindings.ids.data(), count);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, bindings.pointers.data(), count);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace);
  pack.finalize();
  check(cudnnBackendExecute(handle, plan_.get(), pack.get()), "execute");
}

}  // namespace deltaport::cudnn
