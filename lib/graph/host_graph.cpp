// SPDX-License-Identifier: Apache-2.0
// A captured graph on hosts: a flat list of closures. (Kokkos' own host graph walks shared ancestors again for every
// branch: with residual connections its time doubles per layer.)
#include <vector>

#include "graph/capture_log.hpp"

namespace deltaport::graph {
namespace {

class ClosureList : public CaptureLog {
 public:
  using CaptureLog::CaptureLog;
  void keep(std::function<void()> work) override { closures.push_back(std::move(work)); }
  std::vector<std::function<void()>> closures;
};

}  // namespace

struct CapturedGraph::Impl {
  std::string name;
  std::vector<std::function<void()>> closures;
};

CapturedGraph CapturedGraph::capture(Runtime&, const std::string& name, const std::function<void()>& body,
                                     const OperationObserver& observe) {
  ClosureList list(name, observe);
  const std::string problem = list.run(body);
  DELTAPORT_VALIDATE(problem.empty(), CaptureError, problem);
  list.closures.shrink_to_fit();
  CapturedGraph result;
  result.impl_ = std::make_shared<const Impl>(Impl{name, std::move(list.closures)});
  return result;
}

void CapturedGraph::launch() const {
  DELTAPORT_VALIDATE(impl_ != nullptr, CaptureError, "an empty captured graph was launched");
  require_not_recording(impl_->name.c_str(), "a captured graph cannot be part of another");
  Kokkos::Profiling::pushRegion(impl_->name);
  for (const auto& closure : impl_->closures) closure();
  Kokkos::Profiling::popRegion();
}

const std::string& CapturedGraph::name() const {
  return impl_->name;
}
std::int64_t CapturedGraph::operations() const {
  return static_cast<std::int64_t>(impl_->closures.size());
}
std::size_t CapturedGraph::driver_bytes() const {
  return 0;
}

}  // namespace deltaport::graph
