// SPDX-License-Identifier: Apache-2.0
// Stands in where cuDNN was not found.
#include "model/cudnn/attention.hpp"

namespace deltaport::cudnn {

bool available() {
  return false;
}
std::string_view limits() {
  return "nothing: this build has no cuDNN";
}
std::shared_ptr<Attention> Attention::of(Runtime&) {
  return nullptr;
}

}  // namespace deltaport::cudnn
